"""Values of a batch succeed and fail one by one."""

import math

from tests.agent.collect.nvidia.fake_driver import UNSUPPORTED, Fails, FakeDevice

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.metrics import NS
from gpuwarden_agent.collect.nvidia.nvml import Field
from gpuwarden_agent.collect.nvidia.query import (
    Query,
    asked_of_link,
    asked_once,
    read_columns,
    read_fields,
)

ENERGY = asked_once((Field("energy", 83, over=1000), Field("violation", 74, over=NS)))


def test_values_come_in_the_columns_units(clock: ManualClock) -> None:
    device = FakeDevice(fields={83: 1500, 74: 2 * NS})
    assert read_columns(Query(device, clock), "batch", ENERGY) == {
        "energy": 1.5,
        "violation": 2.0,
    }


def test_a_factor_keeps_whole_numbers_whole() -> None:
    assert Field("bytes", 138, times=1024).value(2**53 + 1) == (2**53 + 1) * 1024


def test_a_value_that_is_not_there_is_left_out_of_the_next_batch(clock: ManualClock) -> None:
    device = FakeDevice(fields={83: 1500, 74: Fails(nvml.INVALID_ARGUMENT)})
    query = Query(device, clock)
    for _ in range(2):
        assert read_columns(query, "batch", ENERGY) == {"energy": 1.5}
    assert [query.field for query in device.queries] == [83]
    assert not query.failed


def test_a_batch_without_values_is_not_asked(clock: ManualClock) -> None:
    device = FakeDevice(fields={})
    query = Query(device, clock)
    for _ in range(2):
        assert read_columns(query, "batch", ENERGY) == {}
    assert device.calls["field_values"] == 1


def test_a_batch_that_fails_gives_nothing(clock: ManualClock) -> None:
    device = FakeDevice({"field_values": Fails(nvml.UNKNOWN)}, {83: 1500})
    query = Query(device, clock)
    assert read_columns(query, "batch", ENERGY) == {}
    assert query.failed == {"nvml field_values: UNKNOWN": 1}


def test_reports_tell_of_each_value_and_of_many_links_what_one_has(clock: ManualClock) -> None:
    device = FakeDevice(fields={(206, 0): UNSUPPORTED, (206, 1): 3, (206, 2): UNSUPPORTED})
    query = Query(device, clock)
    query.begin(10, due_s=10)
    asked = [each for link in range(3) for each in asked_of_link([Field("malformed", 206)], link)]
    values = read_fields(query, "links", asked)
    assert values == {("malformed", 206, 1): 3}
    batch, value = query.calls()
    assert (batch.reading, batch.count, batch.tier_s) == ("links", 1, 10)
    assert (value.call, value.reading) == ("nvmlDeviceGetFieldValues(206)", "malformed")
    assert (value.supported, value.code, value.tier_s) == (True, "SUCCESS", 10)


def test_what_is_no_number_is_not_decoded() -> None:
    decoded = Field("rate", 220, decoded=lambda raw: raw + 1)
    assert decoded.value(1) == 2
    assert decoded.value(math.nan) is None
