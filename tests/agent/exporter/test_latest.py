"""Rows that enter batches are kept: which, for how long, and how many."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock, from_ms, to_ms
from gpuwarden.prometheus_names import KEEP_S
from gpuwarden_agent.exporter.latest import INVENTORY_MAX, Latest

START_MS = 1_767_225_600_000


def host_row(ts_ms: int, node: str = "n1", **columns: Any) -> dict[str, Any]:
    return {"ts": ts_ms, "node": node, "simulated": False, **columns}


def test_the_newest_row_of_each_key_is_kept_with_what_came_before(node: Any) -> None:
    for watts in (1.0, 2.0, 3.0):
        node.gpu(power_watts=watts, pcie_tx_bytes_total=round(watts))
        node.gpu(gpu_uuid="GPU-2", power_watts=watts + 10)
        node.clock.advance(1)
    cached = {k.row["gpu_uuid"]: k for k in node.latest.samples("gpu_samples")}
    assert {uuid: k.row["power_watts"] for uuid, k in cached.items()} == {
        "GPU-1b0a": 3.0,
        "GPU-2": 13.0,
    }
    assert cached["GPU-1b0a"].rate(("pcie_tx_bytes_total",)) == 1.0
    assert cached["GPU-2"].rate(("pcie_tx_bytes_total",)) is None


def test_a_row_is_forgotten_after_a_minute_and_its_age_goes_on(node: Any) -> None:
    node.gpu(power_watts=1.0)
    node.clock.advance(KEEP_S)
    assert len(node.latest.samples("gpu_samples")) == 1
    node.clock.advance(0.5)
    assert node.latest.samples("gpu_samples") == []
    assert node.latest.ages_s() == {"gpu_samples": KEEP_S + 0.5}


def test_a_row_of_a_slow_table_is_there_until_its_next_one_is_overdue(node: Any) -> None:
    node.health(remap_failed=False)
    node.clock.advance(150)
    assert len(node.latest.samples("gpu_health_samples")) == 1
    node.clock.advance(0.001)
    assert node.latest.samples("gpu_health_samples") == []


def test_a_row_is_there_until_the_next_tick_of_a_slow_agent(manual_clock: ManualClock) -> None:
    latest = Latest(manual_clock, interval_s=60.0)
    latest.take("host_samples", [host_row(to_ms(manual_clock.now()))])
    manual_clock.advance(61)
    assert len(latest.samples("host_samples")) == 1


def test_a_clock_that_was_far_ahead_does_not_hide_what_comes_after(node: Any) -> None:
    node.host(load_1m=1.0)
    node.clock.step(-7200)
    assert node.latest.samples("host_samples") == []
    node.host(load_1m=2.0)
    assert [k.row["load_1m"] for k in node.latest.samples("host_samples")] == [2.0]
    assert node.latest.ages_s() == {"host_samples": 0.0}


def test_a_process_that_has_ended_goes_with_the_next_reading(node: Any) -> None:
    node.process(1)
    node.process(2)
    node.clock.advance(10)
    node.process(2)
    assert [k.row["pid"] for k in node.latest.samples("process_samples")] == [2]


def test_inventory_stays_until_it_is_replaced(node: Any) -> None:
    node.inventory(model="A")
    node.clock.advance(86_400)
    assert node.latest.gpu("GPU-1b0a")["model"] == "A"
    node.inventory(model="B")
    assert node.latest.gpu("GPU-1b0a")["model"] == "B"
    assert node.latest.node("n1")["driver_version"] == "570.1"
    assert node.latest.gpu("GPU-other") == {} == node.latest.node("other")


def test_of_events_xids_alone_are_counted(node: Any) -> None:
    node.latest.take("events", [host_row(to_ms(node.clock.now()), kind="agent_started")])
    assert node.latest.ages_s() == {} == dict(node.latest.xids.by_kind)
    node.xid(79)
    assert list(node.latest.xids.by_kind.values()) == [1]


def test_an_xid_from_before_the_agents_start_is_none_of_its_own(node: Any) -> None:
    node.clock.advance(100)
    now_ms = to_ms(node.clock.now())
    node.xid(79, ts=now_ms - 100_001)
    assert node.latest.xids.last == {}
    node.xid(13, ts=now_ms - 100_000)
    assert [kind.code for kind in node.latest.xids.last.values()] == [13]


def test_a_clock_that_is_set_back_after_the_start_hides_no_xid(node: Any) -> None:
    node.clock.step(-7200)
    node.clock.advance(1)
    node.xid(79)
    assert [kind.code for kind in node.latest.xids.last.values()] == [79]


def test_rows_beyond_the_bound_are_counted_and_room_is_made_by_age(
    manual_clock: ManualClock,
) -> None:
    latest = Latest(manual_clock, rows_max=2)

    def take(*nodes: str) -> None:
        now_ms = to_ms(manual_clock.now())
        latest.take("host_samples", [host_row(now_ms, name) for name in nodes])

    take("a", "b", "c")
    assert (len(latest.samples("host_samples")), latest.rows_dropped) == (2, 1)
    take("a")
    assert latest.rows_dropped == 1, "a key that is there needs no room"
    manual_clock.advance(KEEP_S + 1)
    take("c", "d")
    assert [k.row["node"] for k in latest.samples("host_samples")] == ["c", "d"]
    assert latest.rows_dropped == 1


def test_rows_of_another_table_make_room_too(manual_clock: ManualClock, node: Any) -> None:
    latest = Latest(manual_clock, rows_max=1)
    latest.take("host_samples", [host_row(to_ms(manual_clock.now()))])
    manual_clock.advance(KEEP_S + 1)
    gpu = host_row(to_ms(manual_clock.now()), gpu_uuid="GPU-1")
    latest.take("gpu_samples", [gpu])
    assert len(latest.samples("gpu_samples")) == 1 and latest.rows_dropped == 0


def test_the_oldest_gpu_leaves_a_full_inventory(node: Any) -> None:
    for number in range(INVENTORY_MAX + 1):
        node.inventory(gpu_uuid=f"GPU-{number}")
    assert node.latest.gpu("GPU-0") == {}
    assert node.latest.gpu("GPU-1") and node.latest.gpu(f"GPU-{INVENTORY_MAX}")


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(-90_000, 90_000), st.integers(0, 30_000)),
        max_size=30,
    )
)
def test_whatever_comes_the_shown_row_is_the_newest_live_one_that_came(
    steps: list[tuple[str, int, int]],
) -> None:
    clock = ManualClock(from_ms(START_MS))
    latest, came = Latest(clock, rows_max=3), dict[str, list[int]]()
    for key, offset_ms, pause_ms in steps:
        clock.advance(pause_ms / 1000)
        ts_ms = to_ms(clock.now()) + offset_ms
        latest.take("host_samples", [host_row(ts_ms, key)])
        if abs(offset_ms) <= KEEP_S * 1000:
            came.setdefault(key, []).append(ts_ms)
    shown = {k.row["node"]: k for k in latest.samples("host_samples")}
    now_ms = to_ms(clock.now())
    expected = {key: max(all_ms) for key, all_ms in came.items()}
    assert {key: k.ts_ms for key, k in shown.items()} == {
        key: ts_ms for key, ts_ms in expected.items() if now_ms - ts_ms <= KEEP_S * 1000
    }
    assert latest.rows_dropped == 0
