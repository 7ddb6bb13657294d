"""The recorder: real probes' runners, a real file, and every way in which either gives up."""

import asyncio
import errno
import gzip
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.probe import ProbeError
from gpuwarden_simulator.recordings.format import (
    Described,
    Ended,
    Failure,
    Samples,
    encode_block,
    read_blocks,
)
from gpuwarden_simulator.recordings.pseudonyms import Pseudonyms
from gpuwarden_simulator.recordings.recorder import Recorder, RecordingFile

INTERVAL_MS = 50


def recorder(path: Path, *probes, **more) -> Recorder:
    file = RecordingFile(path)
    times = {"interval_ms": INTERVAL_MS, "deadline_s": 0.02}
    return Recorder("n1", probes, file, SystemClock(), **{**times, **more})


def read(path: Path):
    with path.open("rb") as file:
        blocks = list(read_blocks(file, str(path)))
    return blocks[0].header, [entry for block in blocks for entry in block.entries]


async def test_what_probes_say_is_in_the_file_tick_for_tick(tmp_path, fake_probe) -> None:
    host, gpu = fake_probe(), fake_probe("gpu0", gpu_uuid="GPU-1", blocking=True)
    gpu.inventory = {"gpus": [{"gpu_uuid": "GPU-1", "model": "X"}]}
    path = tmp_path / "r.jsonl.gz"
    tally = await recorder(path, host, gpu, label="two", deadline_s=5.0).run(asyncio.Event(), 0.5)
    header, entries = read(path)
    assert header is not None
    assert (header.node, header.label, header.interval_s) == ("n1", "two", 0.05)
    assert [(p.name, p.gpu_uuid) for p in header.probes] == [("host", None), ("gpu0", "GPU-1")]
    samples = [e for e in entries if isinstance(e, Samples)]
    said = [e.ts_ms for e in samples if e.probe == "gpu0"]
    # The end may interrupt the last reading on a machine that is busy: it is counted then.
    assert said in (gpu.read_at, gpu.read_at[:-1])
    assert len(said) + tally.failed == tally.ticks
    assert [e.ts_ms for e in samples if e.probe == "host"] == host.read_at
    assert all(e.rows == gpu.answer(e.ts_ms) for e in samples if e.probe == "gpu0")
    (described,) = [e for e in entries if isinstance(e, Described) and e.probe == "gpu0"]
    assert described.rows == gpu.inventory
    assert entries[-1] == Ended(host.read_at[-1], tally.ticks, tally.missed)
    assert tally.ticks + tally.missed >= 10
    assert tally.rows == {"host_samples": len(host.read_at), "gpu_samples": len(said)}
    assert tally.bytes_written == path.stat().st_size
    assert host.closed == gpu.closed == 1


async def test_a_probe_that_fails_is_a_failure_until_it_speaks_again(tmp_path, fake_probe) -> None:
    gpu = fake_probe("gpu0", gpu_uuid="GPU-1")
    answer = gpu.answer

    def sometimes(ts_ms: int):
        if len(gpu.read_at) in (2, 3):
            raise ProbeError("GPU 0 is lost", kind="gpu_lost")
        return answer(ts_ms)

    gpu.answer = sometimes
    path = tmp_path / "r.jsonl.gz"
    tally = await recorder(path, gpu).run(asyncio.Event(), 0.3)
    _, entries = read(path)
    told = [e for e in entries if not isinstance(e, (Described, Ended))]
    assert [type(e) for e in told[:3]] == [Samples, Failure, Samples]
    assert told[1] == Failure(gpu.read_at[1], "gpu0", "gpu_lost", "GPU 0 is lost")
    assert told[2].ts_ms == gpu.read_at[3]
    assert tally.failed == 2


async def test_a_probe_that_hangs_costs_its_own_rows(tmp_path, fake_probe) -> None:
    host, gpu = fake_probe(), fake_probe("gpu0", gpu_uuid="GPU-1", blocking=True)
    gpu.go_on = threading.Event()
    path = tmp_path / "r.jsonl.gz"
    tally = await recorder(path, host, gpu).run(asyncio.Event(), 0.4)
    gpu.go_on.set()
    _, entries = read(path)
    assert {e.probe for e in entries if isinstance(e, Samples)} == {"host"}
    assert [e.kind for e in entries if isinstance(e, Failure)] == ["probe_stuck"]
    assert tally.failed >= 1


async def test_impossible_values_are_left_out_and_counted(tmp_path, fake_probe) -> None:
    host = fake_probe()
    host.answer = lambda _: {"host_samples": [{"load_1m": 1.0, "cpu_util_percent": float("nan")}]}
    path = tmp_path / "r.jsonl.gz"
    tally = await recorder(path, host).run(asyncio.Event(), 0.1)
    _, entries = read(path)
    assert entries[0].rows == {"host_samples": [{"load_1m": 1.0}]}
    assert tally.left_out == {"host_samples.cpu_util_percent": tally.ticks}


async def test_a_row_that_fits_no_table_fails_its_reading(tmp_path, fake_probe) -> None:
    host = fake_probe()
    host.answer = lambda _: {"host_samples": [{"no_such_column": 1.0}]}
    path = tmp_path / "r.jsonl.gz"
    await recorder(path, host).run(asyncio.Event(), 0.1)
    _, entries = read(path)
    assert [e.kind for e in entries if isinstance(e, Failure)] == ["probe_failed"]
    assert not [e for e in entries if isinstance(e, Samples)]


async def test_without_identity_nothing_of_it_is_in_the_file(tmp_path, fake_probe) -> None:
    gpu = fake_probe("gpu0", gpu_uuid="GPU-secret")
    gpu.inventory = {"gpus": [{"gpu_uuid": "GPU-secret", "serial": "secret"}]}
    reads = iter(range(100))

    def answer(_: int):
        if next(reads) % 2:
            raise ProbeError("secret is lost", kind="gpu_lost")
        return {"gpu_samples": [{"gpu_uuid": "GPU-secret", "gpu": 0}]}

    gpu.answer = answer
    path = tmp_path / "r.jsonl.gz"
    more = {"pseudonyms": Pseudonyms()}
    await Recorder(
        "secret-host",
        [gpu],
        RecordingFile(path),
        SystemClock(),
        interval_ms=50,
        deadline_s=1,
        **more,
    ).run(asyncio.Event(), 0.3)
    text = gzip.decompress(path.read_bytes()).decode()
    assert "secret" not in text
    header, entries = read(path)
    assert header is not None and not header.has_identity
    uuids = {e.rows["gpu_samples"][0]["gpu_uuid"] for e in entries if isinstance(e, Samples)}
    described = [e.rows["gpus"][0]["gpu_uuid"] for e in entries if isinstance(e, Described)]
    assert uuids == {described[0]} == {header.probes[0].gpu_uuid}


def test_a_file_that_is_there_is_not_written_over(tmp_path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(b"precious")
    with pytest.raises(StartError, match="is there already; --force"):
        RecordingFile(path)
    assert path.read_bytes() == b"precious"
    RecordingFile(path, force=True).close()
    assert path.exists(), "what was there before is not ours to remove"
    with pytest.raises(StartError, match="cannot be written: No such file"):
        RecordingFile(tmp_path / "none" / "r")


FULL = """
import sys
from pathlib import Path
from gpuwarden_simulator.recordings.recorder import RecordingFile
file = RecordingFile(Path(sys.argv[1]))
try:
    for _ in range(100):
        file.append(bytes.fromhex(sys.argv[2]))
except OSError as error:
    print(error.errno, file.size_bytes)
file.close()
"""


def test_a_full_disk_leaves_whole_blocks(tmp_path) -> None:
    path = tmp_path / "r.jsonl.gz"
    block = encode_block([Samples(1, "host", {"host_samples": [{"load_1m": 0.5}]})])
    limit = 3 * len(block) + 7
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path), block.hex()],
        capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.stdout.split() == [str(errno.EFBIG), str(3 * len(block))]
    assert path.read_bytes() == 3 * block
