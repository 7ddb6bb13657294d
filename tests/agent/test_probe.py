"""The port, and that its implementations keep its promises."""

from typing import Any

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.collect.host.portable import PsutilReader
from gpuwarden_agent.probe import Probe, ProbeError
from gpuwarden_agent.queue.rows import impossible_columns
from gpuwarden_simulator import SimulatedNode

STAMP = {"ts": 1, "node": "n", "simulated": False}
TS_MS = 1_767_225_600_000


@pytest.fixture(params=["fake", "host", "portable host", "simulator"])
def probe(request: pytest.FixtureRequest, fake_probe: Any) -> Probe:
    match request.param:
        case "host":
            return HostProbe(SystemClock())
        case "portable host":
            return HostProbe(SystemClock(), reader=PsutilReader())
        case "simulator":
            return SimulatedNode("sim", 2, model_named("H100-SXM-80GB"), 1)
        case _:
            return fake_probe()  # type: ignore[no-any-return]


def test_readings_fit_their_tables_once_they_are_stamped(probe: Probe) -> None:
    for ts_ms in (TS_MS, TS_MS + 1000):
        for table, rows in probe.read(ts_ms).items():
            assert table in probe.tables
            for row in rows:
                assert not {"ts", "node", "simulated"} & row.keys()
                impossible_columns(table, row | STAMP)
    probe.close()


def test_inventory_fits_its_tables_once_it_is_stamped(probe: Probe) -> None:
    for table, rows in probe.describe().items():
        assert table in ("nodes", "gpus")
        for row in rows:
            required = {"agent_id": "a", "boot_id": "b"} if table == "nodes" else {}
            stamp = {k: v for k, v in STAMP.items() if k in WIRE_TABLES[table].names}
            impossible_columns(table, row | stamp | required)
    probe.close()


def test_an_error_becomes_the_event_it_names() -> None:
    assert ProbeError("gone").kind == "probe_failed"
    assert ProbeError("gone", kind="gpu_lost").kind == "gpu_lost"
