"""Samples become events when they say something new, once, and in words."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_agent.events.changes import NOTHING, ChangeState, observe
from gpuwarden_agent.events.kinds import KINDS
from gpuwarden_agent.queue.rows import impossible_columns

STAMP = {"ts": 0, "node": "n", "simulated": False}
GPU = {"gpu": 3, "gpu_uuid": "GPU-3"}


class Watch:
    """Looks at rows one after another and keeps the events."""

    def __init__(self) -> None:
        self.seen: ChangeState = NOTHING
        self.events: list[dict[str, Any]] = []

    def look(self, table: str, *rows: dict[str, Any]) -> list[str]:
        self.seen, events = observe(self.seen, table, [STAMP | GPU | row for row in rows])
        for row in events:
            impossible_columns("events", STAMP | row)
            assert row["kind"] in KINDS
        self.events += events
        return [str(row["kind"]) for row in events]

    @property
    def message(self) -> str:
        return str(self.events[-1]["message"])

    def health(self, **columns: Any) -> list[str]:
        return self.look("gpu_health_samples", columns)

    def clocks(self, second: int, reasons: int | None, **columns: Any) -> list[str]:
        row = {"ts": second * 1000, "clocks_event_reasons": reasons, **columns}
        return self.look("gpu_samples", row)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("ecc_uncorrected_volatile_total", "ecc_uncorrected"),
        ("remapped_rows_uncorrected_total", "row_remapped"),
        ("remapped_rows_corrected_total", "row_remapped"),
        ("retired_pages_uncorrected_total", "page_retired"),
    ],
)
def test_a_counter_that_grew_is_told_with_how_much(watch: Watch, column: str, kind: str) -> None:
    assert watch.health(**{column: 5}) == [], "older than the agent"
    assert watch.health(**{column: 5}) == []
    assert watch.health(**{column: 7}) == [kind]
    assert ": 2 new, 7 in all; " in watch.message
    assert watch.message.startswith("GPU 3: ")


def test_a_counter_that_was_reset_counts_from_zero(watch: Watch) -> None:
    watch.health(ecc_uncorrected_volatile_total=5)
    assert watch.health(ecc_uncorrected_volatile_total=0) == []
    assert watch.health(ecc_uncorrected_volatile_total=1) == ["ecc_uncorrected"]


def test_a_reading_that_was_absent_for_a_while_is_compared_with_the_one_before(
    watch: Watch,
) -> None:
    watch.health(ecc_uncorrected_volatile_total=5)
    assert watch.health() == []
    assert watch.health(ecc_uncorrected_volatile_total=6) == ["ecc_uncorrected"]


def test_corrected_errors_are_no_event(watch: Watch) -> None:
    watch.health(ecc_corrected_volatile_total=0)
    assert watch.health(ecc_corrected_volatile_total=10**6) == []


@pytest.mark.parametrize(
    ("column", "bad", "kind"),
    [
        ("remap_pending", True, "row_remap_pending"),
        ("remap_failed", True, "row_remap_failed"),
        ("retired_pages_pending", True, "page_retirement_pending"),
        ("memory_unrepairable", True, "memory_unrepairable"),
        ("sram_threshold_exceeded", True, "sram_threshold_exceeded"),
        ("inforom_valid", False, "inforom_invalid"),
    ],
)
def test_a_state_is_told_when_it_turns_bad_and_when_it_is_found_bad(
    watch: Watch, column: str, bad: bool, kind: str
) -> None:
    assert watch.health(**{column: bad}) == [kind]
    assert watch.health(**{column: bad}) == []
    assert watch.health(**{column: not bad}) == []
    assert watch.health(**{column: bad}) == [kind]


def test_the_drivers_wish_is_told_with_what_to_do(watch: Watch) -> None:
    assert watch.health(recovery_action="none") == []
    assert watch.health(recovery_action="node_reboot") == ["recovery_action"]
    assert "drain the node and reboot it" in watch.message
    assert watch.health(recovery_action="none") == ["recovery_action"]
    assert watch.events[-1]["severity"] == "info"


def test_a_fabric_that_suffers_is_told(watch: Watch) -> None:
    assert watch.health(fabric_health="healthy") == []
    assert watch.health(fabric_health="bandwidth_degraded,route_unhealthy") == ["fabric_unhealthy"]
    assert "bandwidth_degraded" in watch.message
    assert watch.health(fabric_health="healthy") == ["fabric_unhealthy"]


def links(*active: bool | None) -> list[dict[str, Any]]:
    return [
        {"link_type": "nvlink", "link": number, "active": is_up}
        for number, is_up in enumerate(active)
        if is_up is not None
    ]


def test_links_that_go_down_together_are_one_event(watch: Watch) -> None:
    assert watch.look("link_samples", *links(True, True, True)) == []
    assert watch.look("link_samples", *links(True, False, False)) == ["link_down"]
    assert watch.message.startswith("GPU 3: NVLinks 1, 2 down")
    assert watch.look("link_samples", *links(True, False, False)) == []
    assert watch.look("link_samples", *links(False, True, True)) == ["link_down", "link_up"]
    assert watch.message == "GPU 3: NVLinks 1, 2 up again"


def test_a_link_that_was_never_up_may_have_no_bridge(watch: Watch) -> None:
    assert watch.look("link_samples", *links(False, False)) == []
    assert watch.look("link_samples", *links(False, False)) == []


def test_a_link_that_does_not_say_its_state_is_not_down(watch: Watch) -> None:
    watch.look("link_samples", *links(True))
    assert watch.look("link_samples", {"link_type": "nvlink", "link": 0}) == []
    assert watch.look("link_samples", {"link_type": "nvlink", "link": 0, "active": None}) == []


def test_a_port_without_a_cable_is_not_news_and_one_that_fails_is(watch: Watch) -> None:
    port = {"device": "mlx5_0", "port": 1, "gpu": None, "gpu_uuid": None}
    assert watch.look("infiniband_samples", {**port, "state": "down"}) == []
    assert watch.look("infiniband_samples", {**port, "state": "active"}) == ["port_up"]
    down = {**port, "state": "down", "physical_state": "Polling"}
    assert watch.look("infiniband_samples", down) == ["port_down"]
    assert watch.message == "mlx5_0 port 1 went down (Polling): check cable and switch"


def test_a_port_that_trains_at_another_rate_is_news_also_after_it_was_down(watch: Watch) -> None:
    port = {"device": "mlx5_0", "port": 1, "gpu": None, "gpu_uuid": None, "state": "active"}
    assert watch.look("infiniband_samples", {**port, "rate_bits_per_second": 4e11}) == []
    assert watch.look("infiniband_samples", port) == []
    assert watch.look("infiniband_samples", {**port, "state": "down"}) == ["port_down"]
    slow = {**port, "rate_bits_per_second": 1e11}
    assert watch.look("infiniband_samples", slow) == ["port_up", "port_rate_lowered"]
    assert watch.message == (
        "mlx5_0 port 1 has 100 Gbit/s, and had 400: check cable and switch port"
    )
    assert watch.look("infiniband_samples", slow) == []
    raised = {**port, "rate_bits_per_second": 4e11}
    assert watch.look("infiniband_samples", raised) == ["port_rate_raised"]


def test_a_slowdown_is_told_after_three_seconds_and_over_after_ten(watch: Watch) -> None:
    looks = [watch.clocks(s, 0x40 if 5 <= s < 20 else 0x4, sm_clock_mhz=600) for s in range(40)]
    assert {s: kinds for s, kinds in enumerate(looks) if kinds} == {
        8: ["slowdown_began"],
        29: ["slowdown_ended"],
    }
    began, ended = watch.events
    assert "hardware thermal slowdown (SM clock 600 MHz)" in began["message"]
    assert ended["duration_seconds"] == 14.0


def test_a_flicker_is_one_slowdown_and_a_blink_is_none(watch: Watch) -> None:
    flicker = [watch.clocks(s, 0x80 if s % 2 else 0) for s in range(30)]
    assert told(flicker) == ["slowdown_began"]
    blink = Watch()
    assert told(blink.clocks(s, 0x80 if s == 5 else 0) for s in range(30)) == []


def test_the_power_cap_is_no_slowdown_and_an_absent_mask_says_nothing(watch: Watch) -> None:
    assert told(watch.clocks(s, 0x4) for s in range(30)) == []
    for second in range(30, 34):
        watch.clocks(second, 0x20)
    assert [watch.clocks(s, None) for s in range(34, 80)] == [[]] * 46


def test_a_power_limit_that_somebody_sets_is_told(watch: Watch) -> None:
    assert watch.clocks(0, 0, power_limit_watts=700.0) == []
    assert watch.clocks(1, 0, power_limit_watts=None) == []
    assert watch.clocks(2, 0, power_limit_watts=350.0) == ["power_limit_changed"]
    assert watch.message == "GPU 3: power limit set from 700 W to 350 W"


def told(looks: Iterable[list[str]]) -> list[str]:
    return list(chain.from_iterable(looks))


def test_a_counter_is_compared_with_that_of_the_same_gpu(watch: Watch) -> None:
    for uuid, total in (("a", 5), ("b", 0), ("a", 5), ("b", 0)):
        assert watch.health(gpu_uuid=uuid, ecc_uncorrected_volatile_total=total) == []


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=120))
def test_slowdowns_begin_and_end_in_turn_and_never_overlap(looks: list[tuple[int, bool]]) -> None:
    watch, second = Watch(), 0
    for step, is_slow in looks:
        second += step
        watch.clocks(second, 0x40 if is_slow else 0)
    kinds = [event["kind"] for event in watch.events]
    assert kinds == (["slowdown_began", "slowdown_ended"] * len(kinds))[: len(kinds)]
