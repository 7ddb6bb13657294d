"""The node's inventory is sent when something changed, and hourly."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.agent.fakes import fake_probe

from gpuwarden_agent.queue.inventory import (
    RESHIP_AFTER_S,
    AgentFacts,
    Inventory,
    backend_of,
    is_simulated,
)
from gpuwarden_agent.queue.rows import impossible_columns

FACTS = AgentFacts(node="n1", agent_id="a", boot_id="b", agent_version="1", labels={"rack": "12"})


def gpu(uuid: str, **more: Any) -> dict[str, Any]:
    return {"gpu_uuid": uuid, "node": "n1", "simulated": False, **more}


@pytest.fixture
def inventory() -> Inventory:
    probes = [fake_probe("gpu0", gpu_uuid="GPU-0"), fake_probe("host")]
    return Inventory(FACTS, probes)


def test_the_nodes_row_is_whole_with_the_agents_own_facts(inventory: Inventory) -> None:
    inventory.described("host", {"nodes": [{"kernel": "6.1", "cpus": 4}]})
    inventory.described("gpu0", {"nodes": [{"driver_version": "580"}], "gpus": [gpu("GPU-0")]})
    table, row = inventory.take_changes(0)[0]
    assert table == "nodes"
    assert impossible_columns("nodes", row) == ()
    assert (row["kernel"], row["driver_version"], row["cpus"]) == ("6.1", "580", 4)
    assert (row["agent_id"], row["backend"], row["gpus"]) == ("a", "nvml", 1)
    assert row["labels"] == '{"rack": "12"}'


def test_a_node_of_a_rack_is_labelled_with_its_chassis_if_nobody_names_the_rack(
    inventory: Inventory,
) -> None:
    def labels(named: dict[str, str], **rack: str) -> str:
        inventory.agent = replace(FACTS, labels=named)
        inventory.described("gpu0", {"gpus": [gpu("GPU-0", **rack)]})
        (row,) = [row for table, row in inventory.take_changes(0) if table == "nodes"]
        return str(row["labels"])

    domain = "ab000000-0000-0000-0000-000000000001"
    assert labels({}, chassis_serial="18", fabric_cluster_uuid=domain) == '{"rack": "18"}'
    assert (
        labels({"zone": "a"}, fabric_cluster_uuid=domain) == f'{{"rack": "{domain}", "zone": "a"}}'
    )
    assert labels({"rack": "r7"}, chassis_serial="18") == '{"rack": "r7"}'
    assert labels({}) == "{}"


def test_labels_of_the_cluster_are_the_nodes_too_and_the_operators_win(
    inventory: Inventory,
) -> None:
    inventory.described("gpu0", {"nodes": [{"labels": '{"rack": "r7", "zone": "a"}'}]})
    (row,) = [row for table, row in inventory.take_changes(0) if table == "nodes"]
    assert row["labels"] == '{"rack": "12", "zone": "a"}'
    inventory.described("gpu0", {"nodes": [{"labels": "labels-1"}]})
    (row,) = [row for table, row in inventory.take_changes(0) if table == "nodes"]
    assert row["labels"] == '{"rack": "12"}'


def test_kubernetes_names_the_instance_where_nothing_else_does(inventory: Inventory) -> None:
    labels = {
        "node.kubernetes.io/instance-type": "a3-highgpu-8g",
        "topology.kubernetes.io/region": "us-central1",
    }
    inventory.described("gpu0", {"nodes": [{"labels": json.dumps(labels)}]})
    inventory.described("host", {"nodes": [{"cloud": "gcp"}]})
    row = inventory.take_changes(0)[0][1]
    assert (row["cloud"], row["instance_type"], row["region"]) == (
        "gcp",
        "a3-highgpu-8g",
        "us-central1",
    )
    inventory.described("host", {"nodes": [{"instance_type": "a3-megagpu-8g"}]})
    row = inventory.take_changes(0)[0][1]
    assert (row["instance_type"], row["region"]) == ("a3-megagpu-8g", "us-central1")


def test_only_what_changed_is_told_again(inventory: Inventory) -> None:
    inventory.described("gpu0", {"gpus": [gpu("GPU-0", serial="1"), gpu("GPU-1")]})
    assert [t for t, _ in inventory.take_changes(0)] == ["nodes", "gpus", "gpus"]
    inventory.described("gpu0", {"gpus": [gpu("GPU-0", serial="1"), gpu("GPU-1")]})
    assert inventory.take_changes(60) == []
    inventory.described("gpu0", {"gpus": [gpu("GPU-0", serial="2"), gpu("GPU-1")]})
    assert inventory.is_changed
    assert inventory.take_changes(120) == [("gpus", gpu("GPU-0", serial="2"))]


def test_all_of_it_is_told_again_after_an_hour(inventory: Inventory) -> None:
    inventory.described("gpu0", {"gpus": [gpu("GPU-0")]})
    inventory.take_changes(0)
    assert len(inventory.take_changes(RESHIP_AFTER_S)) == 2
    assert inventory.take_changes(RESHIP_AFTER_S + 1) == []


def test_a_fact_that_one_probe_lacks_does_not_hide_anothers(inventory: Inventory) -> None:
    inventory.described("gpu0", {"nodes": [{"kernel": "6.1"}]})
    inventory.described("host", {"nodes": [{"kernel": None}]})
    assert inventory.take_changes(0)[0][1]["kernel"] == "6.1"


def test_real_facts_go_before_simulated_ones() -> None:
    probes = [
        fake_probe("host"),
        fake_probe("simulator", simulated=True, tables={"gpu_samples": 1}),
    ]
    inventory = Inventory(FACTS, probes)
    inventory.described("host", {"nodes": [{"cpus": 2}]})
    inventory.described("simulator", {"nodes": [{"cpus": 128, "driver_version": "580"}]})
    row = inventory.take_changes(0)[0][1]
    assert (row["cpus"], row["driver_version"]) == (2, "580")
    assert (row["backend"], row["simulated"]) == ("simulator", False)


def test_a_gpus_index_is_known_once_it_was_described(inventory: Inventory) -> None:
    assert inventory.gpu_index("GPU-0") is None
    inventory.described("gpu0", {"gpus": [gpu("GPU-0", gpu=3)]})
    assert inventory.gpu_index("GPU-0") == 3
    assert inventory.gpu_index(None) is None


def test_the_backend_names_every_real_source_of_gpu_readings() -> None:
    nvidia, simulated = fake_probe("gpu0"), fake_probe("simulator", simulated=True)
    amd = fake_probe("gpu1")
    amd.backend = "amdgpu"
    for probe in (nvidia, amd, simulated):
        probe.tables = {"gpu_samples": 1}
    assert backend_of([nvidia, simulated]) == "nvml"
    assert backend_of([amd, fake_probe("host")]) == "amdgpu"
    assert backend_of([amd, nvidia]) == "amdgpu+nvml"
    assert backend_of([simulated]) == "simulator"


def test_a_host_without_gpus_has_no_backend() -> None:
    assert backend_of([fake_probe("host")]) == "none"
    assert not is_simulated([])
