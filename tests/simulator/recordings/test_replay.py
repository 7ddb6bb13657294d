"""Replay: recorded probes on another clock and another node, with their values as they were."""

import asyncio
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden.models import SIMULATED_ACCELERATORS, GpuModel, model_named
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.queue.inventory import backend_of
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_simulator import SimulatedNode
from gpuwarden_simulator.devices.vendors import source_of
from gpuwarden_simulator.fleet import run_fleet
from gpuwarden_simulator.recordings.format import (
    Described,
    Ended,
    Entry,
    Failure,
    RecordedProbe,
    RecordingError,
    RecordingHeader,
    Samples,
    encode_block,
)
from gpuwarden_simulator.recordings.replay import (
    Play,
    Recording,
    replay_fleet,
    replay_name,
    step_of,
)

FIRST_MS = 1_767_225_600_000
NOW_MS = 1_800_000_003_000
GPU = RecordedProbe("gpu0", {"gpu_samples": 1, "gpu_detail_samples": 10, "events": 1}, "GPU-1")


def write(path: Path, blocks: Sequence[Sequence[Entry]], *probes, **more) -> Path:
    header = RecordingHeader(
        **{
            "gpuwarden": "0.1.0",
            "node": "gpu17",
            "started_at": "2026-01-01T00:00:00Z",
            "interval_s": 1.0,
            "label": "",
            "has_identity": True,
            "probes": probes or (GPU,),
            **more,
        }
    )
    path.write_bytes(b"".join(encode_block(e, None if n else header) for n, e in enumerate(blocks)))
    return path


def sample(second: int, **columns) -> Samples:
    row = {"gpu": 0, "gpu_uuid": "GPU-1", **columns}
    return Samples(FIRST_MS + 1000 * second, "gpu0", {"gpu_samples": [row], "events": []})


def values(probe, seconds, column: str, table: str = "gpu_samples", due=None) -> list:
    """A column of what is read at these seconds; None: absent, False: the table is."""
    read = []
    for second in seconds:
        rows = probe.read(NOW_MS + 1000 * second, due or {table}).get(table)
        read.append(False if rows is None else rows[0].get(column) if rows else None)
    return read


def playing(path: Path, **more):
    return Play(Recording(path), "player", **more).probes()[0]


ONE_OF_EACH_KIND = {source_of(model).backend: model for model in SIMULATED_ACCELERATORS}


@pytest.mark.parametrize(
    "model", [model_named("H200-SXM-141GB"), *ONE_OF_EACH_KIND.values()], ids=lambda one: one.name
)
def test_a_recorded_node_says_again_what_it_said(tmp_path: Path, model: GpuModel) -> None:
    said, again = (SimulatedNode("gpu17", 2, model, 1) for _ in range(2))
    recorded = RecordedProbe("simulator", said.tables)
    ticks = [FIRST_MS + 1000 * n for n in range(65)]
    due = [{t for t, c in said.tables.items() if n == 0 or ts // 1000 % c == 0} for n, ts in enumerate(ticks)]  # fmt: skip
    entries = [Samples(ts, "simulator", said.read(ts, d)) for ts, d in zip(ticks, due, strict=True)]
    blocks = [entries[n : n + 10] for n in range(0, len(entries), 10)]
    blocks[0].insert(1, Described(ticks[0], "simulator", said.describe()))
    probe = playing(write(tmp_path / "r", blocks, recorded))
    assert (probe.simulated, probe.blocking, probe.tables) == (True, False, said.tables)
    names: dict[str, str] = {}

    def compared(table: str, mine: dict, theirs: dict) -> None:
        mine, theirs = dict(mine), dict(theirs)
        for column in ("gpu_uuid", "parent_gpu_uuid"):
            if theirs.pop(column, None) is not None:
                own = mine.pop(column)
                assert uuid.UUID(own.removeprefix("GPU-"))
        if table == "process_samples" and "started_at" in theirs:
            shift = NOW_MS - FIRST_MS
            assert mine.pop("started_at") - theirs.pop("started_at") == shift
        assert mine == {name: value for name, value in theirs.items() if name in mine}
        assert set(mine) == set(theirs)

    for n, (ts, d) in enumerate(zip(ticks, due, strict=True)):
        mine, theirs = probe.read(NOW_MS + 1000 * n, d), again.read(ts, d)
        assert set(mine) == set(theirs)
        for table, rows in theirs.items():
            for own, row in zip(mine[table], rows, strict=True):
                compared(table, own, row)
                if "gpu_uuid" in row:
                    assert names.setdefault(row["gpu_uuid"], own["gpu_uuid"]) == own["gpu_uuid"]
    assert len(set(names.values())) == 2 and not set(names) & set(names.values())
    inventory = probe.describe()
    for table, rows in said.describe().items():
        for own, row in zip(inventory[table], rows, strict=True):
            compared(table, own, row)


numbers = st.one_of(st.integers(0, 2**40), st.floats(0, 1e12, allow_nan=False))


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_counters_that_grow_never_fall_when_it_begins_again(tmp_path_factory, grown, kind) -> None:
    total, counted = 0, []
    for number in grown:
        total += number if kind > 1 else float(number)
        counted.append(float(total))
    path = tmp_path_factory.mktemp("loop") / "r"
    entries = [sample(n, energy_joules_total=value) for n, value in enumerate(counted)]
    read = values(playing(write(path, [entries])), range(5 * len(grown)), "energy_joules_total")
    assert read[: len(grown)] == counted
    assert read == sorted(read)
    whole = counted[-1] - counted[0]
    assert read[-1] == pytest.approx(counted[0] + 5 * whole, rel=1e-9, abs=1e-4)


@given(numbers, numbers)
def test_a_counter_that_ended_no_higher_is_not_moved(first, last) -> None:
    step = step_of(first, last)
    assert step == 0 if last <= first else step >= last - first
    assert step_of(first, float("inf")) == 0
    assert step_of(None, last) == step_of(first, None) == step_of("a", last) == 0


def test_gauges_stay_and_integers_stay_integers_when_it_begins_again(tmp_path: Path) -> None:
    entries = [sample(n, util_percent=n * 10.0, nvlink_tx_bytes_total=2**60 + n) for n in range(3)]
    probe = playing(write(tmp_path / "r", [entries]))
    rows = [probe.read(NOW_MS + 1000 * n, {"gpu_samples"})["gpu_samples"][0] for n in range(7)]
    assert [row["util_percent"] for row in rows] == [0.0, 10.0, 20.0, 0.0, 10.0, 20.0, 0.0]
    moved = [row["nvlink_tx_bytes_total"] - 2**60 for row in rows]
    assert moved == [0, 1, 2, 2, 3, 4, 4]


def test_what_was_not_recorded_is_absent(tmp_path: Path) -> None:
    entries = [sample(n, util_percent=float(n)) for n in (0, 1, 4)]
    probe = playing(write(tmp_path / "r", [entries]))
    assert values(probe, range(5), "util_percent") == [0.0, 1.0, False, False, 4.0]


def test_a_probe_that_failed_fails_again_until_it_spoke(tmp_path: Path) -> None:
    lost = Failure(FIRST_MS + 1000, "gpu0", "gpu_lost", "GPU 0 of gpu17 (GPU-1) is lost")
    entries = [sample(0, util_percent=1.0), lost, sample(3, util_percent=2.0)]
    probe = playing(write(tmp_path / "r", [entries]))
    assert values(probe, [0], "util_percent") == [1.0]
    for second in (1, 2):
        with pytest.raises(ProbeError, match="of player") as caught:
            probe.read(NOW_MS + second * 1000)
        assert caught.value.kind == "gpu_lost"
        assert "GPU-1)" not in str(caught.value)
    assert values(probe, [3, 4], "util_percent") == [2.0, 1.0]


def test_events_all_come_with_their_instants_and_names_of_this_node(tmp_path: Path) -> None:
    def event(second: int, ms: int) -> Samples:
        ts_ms = FIRST_MS + 1000 * second
        row = {
            "ts": ts_ms - ms, "gpu": 0, "gpu_uuid": "GPU-1", "kind": "xid", "severity": "critical",
            "message": "gpu17: XID 79 on GPU-1, not on gpu171", "details": '{"xid": 79}',
        }  # fmt: skip
        return Samples(ts_ms, "gpu0", {"events": [row]})

    probe = playing(write(tmp_path / "r", [[sample(0)], [event(1, 300), event(2, 100)]]))
    probe.read(NOW_MS)
    events = probe.read(NOW_MS + 2000)["events"]
    assert [row["ts"] for row in events] == [NOW_MS + 700, NOW_MS + 1900]
    message, own = events[0]["message"], events[0]["gpu_uuid"]
    assert message == f"player: XID 79 on {own}, not on gpu171"
    assert [row["ts"] for row in probe.read(NOW_MS + 5000)["events"]] == [NOW_MS + 3700, NOW_MS + 4900]  # fmt: skip


def test_what_a_newer_version_recorded_is_left_out_and_named(tmp_path: Path) -> None:
    row = {"gpu_uuid": "GPU-1", "gpu": 0, "future_column": 1}
    entries = [Samples(FIRST_MS, "gpu0", {"gpu_samples": [row], "future_samples": [{"a": 1}]})]
    recorded = RecordedProbe("gpu0", {"gpu_samples": 1, "future_samples": 1}, "GPU-1")
    recording = Recording(write(tmp_path / "r", [entries], recorded))
    assert recording.unknown == {"gpu_samples.future_column", "future_samples"}
    probe = Play(recording, "player").probes()[0]
    assert probe.tables == {"gpu_samples": 1}
    (read,) = probe.read(NOW_MS)["gpu_samples"]
    assert set(read) == {"gpu_uuid", "gpu"}


def test_a_recording_that_cannot_be_played_says_why(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for entries, probes, says in (
        ([Ended(FIRST_MS, 0, 0)], (GPU,), "has no samples"),
        ([sample(0)], (GPU, GPU), "two probes have the same name"),
        ([sample(0)], (RecordedProbe("gpu0", {"gpu_samples": 0}),), "a cadence below a second"),
    ):
        write(path, [entries], *probes)
        with pytest.raises(RecordingError, match=says):
            Recording(path)


def test_a_file_that_went_away_fails_the_probe_and_not_the_agent(tmp_path: Path) -> None:
    path = write(tmp_path / "r", [[sample(n)] for n in range(5)])
    probe = playing(path)
    probe.read(NOW_MS)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        probe.read(NOW_MS + 4000)


async def test_a_fleet_plays_it_on_nodes_of_their_own_with_their_past(
    tmp_path, stub_collector, until_true
) -> None:  # fmt: skip
    inventory = {"gpus": [{"gpu_uuid": "GPU-1", "gpu": 0, "model": "NVIDIA H200"}]}
    entries = [sample(n, util_percent=float(n)) for n in range(10)]
    described = Described(FIRST_MS, "gpu0", inventory)
    recording = Recording(write(tmp_path / "r", [[described, *entries]]))
    fleet = replay_fleet(recording, [replay_name(number) for number in range(3)])
    assert [name for name, _ in fleet] == ["replay-0001", "replay-0002", "replay-0003"]
    assert backend_of(fleet[0][1]) == "replay"
    clock = ManualClock(datetime(2026, 6, 1, tzinfo=UTC))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        running = run_fleet(
            fleet,
            collector_url=stub_collector.url,
            clock=clock,
            stop=stop,
            history_s=30,
            settings=AgentSettings(backend="replay"),
        )
        group.create_task(running)
        await until_true(lambda: len(stub_collector.rows("gpu_samples")) >= 90)
        stop.set()
    rows = stub_collector.rows("gpu_samples")
    for name, _ in fleet:
        mine = sorted((r["ts"], r["util_percent"]) for r in rows if r["node"] == name)
        assert [value for _, value in mine] == [float(n % 10) for n in range(len(mine))]
        assert len(mine) >= 30
    assert len({row["gpu_uuid"] for row in rows}) == 3
    assert {row["simulated"] for row in rows} == {True}
    assert {row["backend"] for row in stub_collector.rows("nodes")} == {"replay"}
    assert len({row["gpu_uuid"] for row in stub_collector.rows("gpus")}) == 3
