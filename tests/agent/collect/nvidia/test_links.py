"""Links of each generation: identities, counters with codes of their own, and encoded error rates."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.nvidia.fake_driver import (
    A100,
    A100_FIELDS,
    B200,
    B200_FIELDS,
    H100_IDLE,
    H100_IDLE_FIELDS,
    L40S_BUSY,
    L40S_BUSY_FIELDS,
    UNSUPPORTED,
    Fails,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.links import LinkReader
from gpuwarden_agent.collect.nvidia.metrics import FIELDS, bit_error_rate
from gpuwarden_agent.collect.nvidia.query import LEARNED_FOR_S, Query
from gpuwarden_agent.probe import Row


def links_of(device: FakeDevice, clock: ManualClock) -> LinkReader:
    links = LinkReader(Query(device, clock), clock)
    links.look(links.learn() or 0)
    return links


def rows_of(answers: dict[str, Any], fields: dict[Any, Any], clock: ManualClock) -> list[Row]:
    rows = links_of(FakeDevice(answers, fields), clock).rows()
    return [{column: v for column, v in row.items() if v is not None} for row in rows]


def test_older_error_fields_are_never_asked(clock: ManualClock) -> None:
    """They answer success and 0 on Hopper: no errors is what only the call may say."""
    answers = H100_IDLE | {"nvlink_errors": lambda link, counter: UNSUPPORTED}
    device = FakeDevice(answers, H100_IDLE_FIELDS | dict.fromkeys([*range(32, 60), 161, 162], 0))
    rows = links_of(device, clock).rows()
    errors = {f"{name}_errors_total" for name in ("replay", "recovery", "crc_flit", "crc_data")}
    assert not [
        v for row in rows for column, v in row.items() if column in errors and v is not None
    ]
    assert not {query.field for query in device.queries} & {*range(32, 60), 161, 162, 163}


def test_all_links_are_asked_in_one_driver_call(clock: ManualClock) -> None:
    device = FakeDevice()
    links = links_of(device, clock)
    device.calls.clear()
    links.rows()
    assert device.calls["field_values"] == 1
    assert len(device.queries) == 18 * len(FIELDS["link_samples"])
    links.rows()
    assert {query.field for query in device.queries} == {138, 139, 164}


def test_a_link_that_is_down_tells_nothing_but_that(clock: ManualClock) -> None:
    states = dict.fromkeys(range(18), True) | {7: False}
    links = links_of(FakeDevice(H100_IDLE | {"is_nvlink_active": states}), clock)
    assert links.active == 17
    assert links.rows()[7] == {"link_type": "nvlink", "link": 7, "active": False}


def test_a_link_that_does_not_answer_is_neither_up_nor_down(clock: ManualClock) -> None:
    states = dict.fromkeys(range(18), True) | {7: Fails(nvml.UNKNOWN)}
    links = links_of(FakeDevice(H100_IDLE | {"is_nvlink_active": states}), clock)
    assert 7 not in [row["link"] for row in links.rows()]
    assert links.active == 17


def test_each_link_has_its_own_errors(clock: ManualClock) -> None:
    rows = rows_of(A100, A100_FIELDS, clock)
    assert [row["replay_errors_total"] for row in rows] == list(range(12))
    assert rows[0]["version"] == 3
    assert rows[0]["ecc_data_errors_total"] == 0


def test_a_board_without_nvlink_has_no_rows(clock: ManualClock) -> None:
    links = links_of(FakeDevice(L40S_BUSY, L40S_BUSY_FIELDS), clock)
    assert links.rows() == []
    assert links.active is None


@pytest.mark.parametrize("count", [UNSUPPORTED, 0xFFFF, 65])
def test_a_count_that_cannot_be_is_unknown(count: Any, clock: ManualClock) -> None:
    device = FakeDevice(H100_IDLE, H100_IDLE_FIELDS | {91: count})
    assert LinkReader(Query(device, clock), clock).learn() is None


def test_blackwell_counts_by_fields_of_its_own(clock: ManualClock) -> None:
    first, second, *_ = rows_of(B200, B200_FIELDS, clock)
    assert (first["version"], first["recoveries_successful_total"]) == (5, 4)
    assert first["effective_bit_error_rate"] == pytest.approx(5e-12)
    assert first["symbol_bit_error_rate"] == pytest.approx(15e-255, rel=1e-9, abs=0)
    assert "replay_errors_total" not in first
    # Link 0 has no KiB under the older ids, and bytes under the new ones.
    assert (first["tx_bytes_total"], first["rx_bytes_total"]) == (7_000, 9_000)
    assert (second["tx_bytes_total"], second["rx_bytes_total"]) == (1_024_000, 2_048_000)


def test_what_a_link_is_is_asked_rarely(clock: ManualClock) -> None:
    device = FakeDevice()
    links = links_of(device, clock)
    for _ in range(5):
        links.rows()
        clock.advance(10)
    assert device.calls["nvlink_version"] == 18
    clock.advance(LEARNED_FOR_S)
    links.rows()
    assert device.calls["nvlink_version"] == 36


def test_links_lead_to_a_switch_or_to_a_gpu(clock: ManualClock) -> None:
    assert links_of(FakeDevice(), clock).ways() == ["switch"] * 18
    direct = H100_IDLE | {"nvlink_remote_type": dict.fromkeys(range(18), 0)}
    assert set(links_of(FakeDevice(direct), clock).ways()) == {f"0000:0{n}:00.0" for n in range(4)}


@pytest.mark.parametrize(
    ("encoded", "rate"),
    [(0, 0.0), (0x50C, 5e-12), (0xF00, 15.0), (0xFFF, 15e-255), (0x1000, None), (-1, None)],
)
def test_an_error_rate_is_mantissa_and_power_of_ten(encoded: int, rate: float | None) -> None:
    assert bit_error_rate(encoded) == rate


@given(st.integers(0, 15), st.integers(0, 255))
def test_every_encoded_rate_is_decoded(mantissa: int, exponent: int) -> None:
    rate = bit_error_rate(mantissa << 8 | exponent)
    assert rate == pytest.approx(mantissa / 10**exponent, rel=1e-12, abs=0)
