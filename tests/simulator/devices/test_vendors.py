"""Nodes of other vendors: what their sources tell, all of that, and nothing else."""

from typing import Any

import pytest

from gpuwarden.clock import EPOCH, to_ms
from gpuwarden.models import SIMULATED_ACCELERATORS, GpuModel, find_model
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_simulator import SimulatedNode
from gpuwarden_simulator.devices.vendors import source_of
from gpuwarden_simulator.faults.kinds import Fault, FaultKind, misfit

START_MS = to_ms(EPOCH) + 1_800_000_000_000
OF_GPUS = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples")
IDENTITY = {"gpu", "gpu_uuid"}
every_model = pytest.mark.parametrize("model", SIMULATED_ACCELERATORS, ids=lambda one: one.name)


def hour(node: SimulatedNode) -> dict[str, list[dict[str, Any]]]:
    """Rows of an hour, a reading every two minutes."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for minute in range(0, 60, 2):
        for table, found in node.read(START_MS + minute * 60_000).items():
            rows.setdefault(table, []).extend(dict(row) for row in found)
    return rows


@every_model
def test_rows_have_what_the_source_tells_and_nothing_else(model: GpuModel) -> None:
    source = source_of(model)
    assert source
    rows = hour(SimulatedNode("n1", 4, model, 7))
    assert set(source.tables) == set(rows) & set(OF_GPUS)
    for table, columns in source.tables.items():
        assert {frozenset(row) for row in rows[table]} == {frozenset(IDENTITY | set(columns))}
        assert set(columns) <= {column.name for column in WIRE_TABLES[table].columns}
    assert ("process_samples" in rows) == source.tells_processes
    assert all("sm_util_percent" not in row for row in rows.get("process_samples", ()))
    # What the host and the scheduler tell does not depend on the devices.
    assert {"host_samples", "allocation_samples"} <= set(rows)


@every_model
def test_devices_are_named_as_their_driver_names_them(model: GpuModel) -> None:
    rows = SimulatedNode("n1", 2, model, 7).describe()["gpus"]
    source = source_of(model)
    assert source
    for row in rows:
        found = find_model(str(row["model"]))
        assert found
        assert found.name == model.name
        assert (row["vendor"], row["kind"]) == (found.vendor, found.kind)
        assert str(row["gpu_uuid"]).startswith(f"{source.prefix}-")
        assert set(row) == IDENTITY | {"vendor", "kind", "model"} | set(source.inventory)
    assert len({row["gpu_uuid"] for row in rows}) == 2


ONE_OF_EACH_SOURCE = [
    *{source_of(model).backend: model for model in SIMULATED_ACCELERATORS}.values()
]
OPTIONS = {"code": 48, "link": 0, "workload": "idle_held", "pages": 30, "width": 4}
OF_NODES = (FaultKind.REBOOT, FaultKind.INFINIBAND_DOWN, FaultKind.NFS_SLOW, FaultKind.SHM_FULL)


@pytest.mark.parametrize("model", ONE_OF_EACH_SOURCE, ids=lambda one: one.name)
def test_a_fault_that_nothing_shows_is_refused(model: GpuModel) -> None:
    """What is not refused changes a column that the source tells, or takes the rows away."""
    well = hour(SimulatedNode("n1", 2, model, 7, stride_ms=30_000))
    for kind in FaultKind:
        gpu = None if kind in OF_NODES else 1
        fault = Fault(kind, 300_000, 3_000_000, gpu, OPTIONS)
        said = misfit(fault, model, 2)
        if said is not None:
            assert said.startswith((model.name, "nodes with"))
            with pytest.raises(ValueError, match=model.name):
                SimulatedNode("n1", 2, model, 7, script=[fault])
            continue
        broken = hour(SimulatedNode("n1", 2, model, 7, script=[fault], stride_ms=30_000))
        broken.pop("events", None)
        assert broken != well, kind
