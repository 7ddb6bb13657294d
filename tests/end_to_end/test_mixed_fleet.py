"""Nodes of six vendors beside one another: SQL, rules and reports over all of them."""

import json
from collections import defaultdict
from typing import Any

import pytest

from gpuwarden.models import model_named
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_simulator.devices.vendors import source_of

MODELS = (
    "H100-SXM-80GB", "MI300X-192GB", "TPU-v5p", "Trainium", "Gaudi3-128GB", "Ascend-910B", "M4-Max", "Jetson-AGX-Orin"
)  # fmt: skip
NODES = {f"sim-{number + 1:04d}": name for number, name in enumerate(MODELS)}
PLANTED = {
    ("sim-0003", 0, "gpu_idle_held"): 'fault = "job"\nworkload = "idle_held"',
    ("sim-0004", 1, "ecc_uncorrectable"): 'fault = "ecc_uncorrected"\nerrors = 2',
    ("sim-0005", 1, "ecc_uncorrectable"): 'fault = "ecc_uncorrected"',
    ("sim-0006", 0, "ecc_uncorrectable"): 'fault = "ecc_uncorrected"',
    ("sim-0006", 1, "retired_pages_exhausted"): 'fault = "pages_retired"\npages = 61',
}
"""Node, GPU, the rule that must fire, and the fault."""
HISTORY_S = 2700


@pytest.mark.slow
def test_every_vendor_is_in_the_tables_and_its_faults_fire(world) -> None:
    script = world.folder / "faults.toml"
    script.write_text(
        "\n".join(
            f'[[fault]]\nat = "5m"\nnode = "{node}"\ngpu = {gpu}\n{fault}\n'
            for (node, gpu, _), fault in PLANTED.items()
        )
    )
    collector = world.collector()
    world.wait_ready(collector)
    fleet = world.run(
        "simulate", "--nodes", str(len(MODELS)), "--gpus-per-node", "2", "--model", ",".join(MODELS),
        "--history", str(HISTORY_S), "--duration", "15", "--script", str(script),
    )  # fmt: skip
    assert fleet.returncode == 0, fleet.stderr
    span = "select date_diff('second', min(ts), max(ts)) from gpu_1m where simulated"
    world.wait_for(lambda: (world.one(span) or 0) >= HISTORY_S - 300, "rollups of the history")
    _columns_are_those_that_sources_tell(world)
    _planted_faults_fire_and_no_other_hardware_rule(world)
    _dollars_of_all_add_up(world)
    assert collector.stop() == 0


def _columns_are_those_that_sources_tell(world: Any) -> None:
    vendors = world.ask(
        "select node, any_value(vendor), count(*) from gpus group by all order by 1"
    )
    assert [(node, model_named(NODES[node]).vendor, 2) for node in NODES] == [
        tuple(r) for r in vendors
    ]
    for node, name in NODES.items():
        source = source_of(model_named(name))
        if source is None:
            continue
        for table in ("gpu_samples", "gpu_detail_samples", "gpu_health_samples"):
            columns = [column.name for column in WIRE_TABLES[table].columns]
            counts = ", ".join(f'count("{column}")' for column in columns)
            (row,) = world.ask(f"select {counts} from {table} where node = '{node}'")
            filled = {column for column, count in zip(columns, row, strict=True) if count}
            told = set(source.tables.get(table, ()))
            always = {"ts", "node", "gpu", "gpu_uuid", "simulated"} if told else set()
            assert filled == told | always, (node, table)


def _planted_faults_fire_and_no_other_hardware_rule(world: Any) -> None:
    rules = sorted(
        {rule for _, _, rule in PLANTED} | {"retired_pages", "xid_critical", "row_remap_failed"}
    )
    said = world.run("rules", "backtest", *rules, "--since", "2h", "--format", "json", timeout=300)
    fired = defaultdict(set)
    assert said.returncode == 0, said.stderr
    for line in said.stdout.splitlines():
        one = json.loads(line)
        if (labels := one.get("labels", {})) and "gpu" in labels:
            fired[one["rule"]].add((labels["node"], int(labels["gpu"])))
    of_others = {node for node, name in NODES.items() if source_of(model_named(name))}
    for rule in rules:
        expected = {(node, gpu) for node, gpu, name in PLANTED if name == rule}
        found = {place for place in fired[rule] if place[0] in of_others}
        if rule == "retired_pages":
            expected = {("sim-0006", 1)}
        if rule == "gpu_idle_held":  # other jobs may idle, too
            assert expected <= found
        else:
            assert found == expected, rule


def _dollars_of_all_add_up(world: Any) -> None:
    whole, parts, without = world.ask(
        "select (select sum(usd) from waste), (select sum(usd) from (select sum(usd) as usd from waste group by node, category)),"
        " (select count(distinct model) from gpus where usd_per_hour is null)"
    )[0]
    assert whole > 0
    assert abs(whole - parts) < 0.005
    assert without >= 3
    assert "Ascend-910B,2" in world.run("ask", "gpus-without-price", "--format", "csv").stdout
