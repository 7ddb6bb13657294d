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
