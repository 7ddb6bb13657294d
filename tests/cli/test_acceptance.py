"""A repaired node returns only if its readings are those of a well node; what is not read decides nothing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuwarden_cli.acceptance import FAIL, OK, UNKNOWN, AcceptanceFacts, checks, read
from gpuwarden_rules.testing.database import MemoryDatabase

NOW = datetime.now(UTC).replace(microsecond=0)
GPU: dict[str, Any] = {
    "gpu": 0, "gpu_uuid": "GPU-a", "model": "H100", "driver_version": "580.1", "vbios_version": "96", "inforom_version": "G5",
    "ecc_mode": True, "ecc_mode_pending": True, "persistence_mode": True, "mig_mode": False, "pcie_generation_max": 5,
    "pcie_width_max": 16, "nvlinks": 18, "power_limit_watts": 700.0, "reports": True, "pcie_width": 16, "pcie_generation": 5,
    "nvlinks_active": 18, "remap_pending": False, "remap_failed": False, "recovery_action": "none",
    "memory_unrepairable": False, "inforom_valid": True, "ecc_uncorrected_volatile_total": 0, "fabric_health": "healthy",
}  # fmt: skip
USUAL = {
    "driver_version": "580.1", "vbios_version": "96", "inforom_version": "G5", "ecc_mode": True, "persistence_mode": True,
    "mig_mode": False, "power_limit_watts": 700.0,
}  # fmt: skip
TEST: dict[str, Any] = {
    "run": "0123456789ab", "gpu": 0, "test": "matmul_fp16", "status": "ok", "value": 600.0, "unit": "TFLOP/s",
    "finding": "9 products are right", "library": "torch", "model": "H100",
}  # fmt: skip
SPEED = {"model": "H100", "test": "matmul_fp16", "library": "torch", "value": 620.0, "others": 8}
LOAD = {"gpu": 0, "samples": 20, "clock_mhz": 1755.0, "temperature_celsius": 71.0, "held": 0.0}
WELL = AcceptanceFacts(
    {"node": "n1", "gpus": 1, "silent_s": 3.0, "simulated": False}, [GPU], {"H100": USUAL}, [], [], NOW, [TEST], [SPEED], [LOAD],
)  # fmt: skip


def failed(facts: AcceptanceFacts) -> dict[str, str]:
    return {check.name: check.finding for check in checks(facts) if check.status == FAIL}


def test_a_well_node_passes_every_check() -> None:
    assert {check.status for check in checks(WELL)} == {OK}
    assert len(checks(WELL)) == 18


@pytest.mark.parametrize(
    ("changed", "name", "said"),
    [
        ({"driver_version": "570.9"}, "driver", "GPU 0 has 570.9, most have 580.1"),
        ({"vbios_version": "95"}, "VBIOS", "GPU 0 has 95, most have 96"),
        ({"ecc_mode": False, "ecc_mode_pending": False}, "ECC mode", "GPU 0 has off, most have on"),
        ({"power_limit_watts": 500.0}, "power limit", "GPU 0 has 500, most have 700"),
        ({"ecc_mode_pending": False}, "ECC errors", "GPU 0 changes its ECC mode at the next reboot"),
        ({"ecc_uncorrected_volatile_total": 2}, "ECC errors", "GPU 0: 2 uncorrected memory errors since the driver was loaded"),
        ({"remap_pending": True}, "health", "GPU 0 waits to remap a row"),
        ({"remap_failed": True}, "health", "GPU 0 could not remap a row"),
        ({"memory_unrepairable": True}, "health", "GPU 0 has unrepairable memory"),
        ({"inforom_valid": False}, "health", "GPU 0 has an invalid InfoROM"),
        ({"recovery_action": "gpu_reset"}, "health", "GPU 0: asks for gpu_reset"),
        ({"pcie_width": 8}, "PCIe width", "GPU 0 has 8 of 16 lanes"),
        ({"nvlinks_active": 17}, "NVLink", "GPU 0 has 17 of 18 NVLinks up"),
        ({"fabric_health": "route_unhealthy"}, "NVLink", "GPU 0: the fabric has route_unhealthy"),
        ({"reports": False}, "gpus", "no samples of GPU 0 in the last minute"),
    ],
)  # fmt: skip
def test_each_fault_of_a_gpu_fails_its_check_alone(changed: dict, name: str, said: str) -> None:
    assert failed(replace(WELL, gpus=[{**GPU, **changed}])) == {name: said}


@pytest.mark.parametrize(
    ("facts", "name", "said"),
    [
        ({"node": {**WELL.node, "silent_s": 90.4}}, "reports", "its newest data are 90 s old"),
        ({"node": {**WELL.node, "silent_s": None}}, "reports", "it has never reported"),
        ({"node": {**WELL.node, "gpus": 0}}, "gpus", "the driver has 0 GPUs, and 1 were there"),
        ({"events": [{"gpu": 0, "kind": "xid", "message": "Xid 79", "ts": NOW}]}, "events", f"Xid 79 ({NOW:%H:%M} UTC)"),
        ({"alerts": [{"rule": "nvlink_down", "gpu": 0, "severity": "critical"}, {"rule": "node_down", "gpu": None, "severity": "critical"}]},
         "alerts", "nvlink_down of GPU 0; node_down"),
        ({"tests": [TEST, {**TEST, "test": "memory", "status": "fail", "value": 2.0, "finding": "2 wrong words of 0x55"}]},
         "tests", "GPU 0 memory: 2 wrong words of 0x55"),
        ({"tests": [TEST, {**TEST, "gpu": None, "test": "dcgm", "status": "fail", "value": None, "finding": "memory of GPU 1: remap"}]},
         "tests", "dcgm: memory of GPU 1: remap"),
        ({"tests": [{**TEST, "value": 557.0}]}, "speed", "GPU 0 matmul_fp16 557 TFLOP/s, others 620"),
        ({"load": [{**LOAD, "held": 0.25, "temperature_celsius": 88.0}]},
         "clocks under load", "GPU 0 is held down 25% of the time by heat or its power supply, at 88 °C"),
    ],
)  # fmt: skip
def test_each_fault_of_the_node_fails_its_check_alone(facts: dict, name: str, said: str) -> None:
    assert failed(replace(WELL, **facts)) == {name: said}


def test_what_is_not_read_is_unknown_and_not_ok() -> None:
    kept = ("gpu", "gpu_uuid", "model", "reports")
    bare = {name: value if name in kept else None for name, value in GPU.items()}
    found = {check.name: check.status for check in checks(replace(WELL, gpus=[bare]))}
    assert {name for name, status in found.items() if status == OK} == {
        "reports", "gpus", "events", "alerts", "tests", "speed", "clocks under load",
    }  # fmt: skip
    assert set(found.values()) == {OK, UNKNOWN}
    untested = {c.name: c for c in checks(replace(WELL, tests=[], load=[]))}
    assert {untested[name].status for name in ("tests", "speed", "clocks under load")} == {UNKNOWN}
    assert "gpuwarden agent test-gpus on the node" in untested["tests"].finding
    # One other GPU, another library or another model is nothing to compare with.
    for other in ({"others": 1}, {"library": "cupy"}, {"model": "A100"}):
        found = {
            c.name: c for c in checks(replace(WELL, speeds=[{**SPEED, **other, "value": 9e9}]))
        }
        assert (found["speed"].status, found["speed"].finding) == (
            UNKNOWN,
            "no other node's tests to compare with",
        )
    alone = checks(replace(WELL, most={}))
    assert {c.finding for c in alone if c.status == UNKNOWN} == {"no other node has this model"}
    assert failed(replace(WELL, gpus=[])) == {"gpus": "it has no GPU"}


async def test_facts_are_read_of_the_node_and_of_others_of_its_models() -> None:
    now = datetime.now(UTC).replace(microsecond=0)  # of this minute, as the views read it
    database = MemoryDatabase()
    seen = {"first_seen_at": now - timedelta(days=9), "last_seen_at": now, "simulated": False}
    for number, driver in enumerate(("570.9", "580.1", "580.1")):
        node = f"n{number}"
        uuid = f"GPU-{number}"
        database.insert("nodes", [{"node": node, "agent_id": "a", "boot_id": "b", "gpus": 1, "driver_version": driver, **seen}])  # fmt: skip
        row = {"node": node, "gpu": 0, "gpu_uuid": uuid, "simulated": False}
        database.insert("gpus", [{**row, **seen, "model": "H100", "ecc_mode": True, "nvlinks": 18, "pcie_width_max": 16}])  # fmt: skip
        database.insert("gpu_samples", [{**row, "ts": now, "power_limit_watts": 700.0}])
        database.insert("gpu_detail_samples", [{**row, "ts": now, "pcie_width": 16, "nvlinks_active": 18 - number}])  # fmt: skip
        database.insert("gpu_health_samples", [{**row, "ts": now, "recovery_action": "none", "ecc_uncorrected_volatile_total": 0}])  # fmt: skip
    database.insert("events", [
        {"node": "n0", "gpu": 0, "gpu_uuid": "GPU-0", "ts": now - timedelta(minutes=m), "simulated": False, "kind": "xid",
         "severity": "critical", "message": f"Xid {m}"}
        for m in (5, 90)
    ])  # fmt: skip
    facts = await read(database, "n0", now - timedelta(hours=1))
    assert facts is not None
    found = failed(facts)
    assert found.pop("events").startswith("Xid 5 (")
    assert found == {"driver": "GPU 0 has 570.9, most have 580.1"}
    second = await read(database, "n1", now - timedelta(hours=1))
    assert second is not None
    assert failed(second)["NVLink"] == "GPU 0 has 17 of 18 NVLinks up"
    assert await read(database, "n9", now) is None
    database.close()


async def test_the_last_real_run_of_a_node_is_compared_with_other_nodes() -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    database = MemoryDatabase()
    seen = {"first_seen_at": now - timedelta(days=9), "last_seen_at": now, "simulated": False}

    def result(node: str, run: str, value: float, minutes: int = 1, **more: Any) -> dict[str, Any]:
        end = now - timedelta(minutes=minutes)
        return {
            "ts": end, "node": node, "run": run, "gpu": 0, "gpu_uuid": f"GPU-{node}", "test": "matmul_fp16", "status": "ok",
            "value": value, "unit": "TFLOP/s", "finding": "right", "tool": "torch 2.9", "began_at": end - timedelta(seconds=10),
            "simulated": False, **more,
        }  # fmt: skip

    for node in ("n0", "n1", "n2", "n3"):
        database.insert(
            "nodes", [{"node": node, "agent_id": "a", "boot_id": "b", "gpus": 1, **seen}]
        )
        database.insert(
            "gpus", [{"node": node, "gpu": 0, "gpu_uuid": f"GPU-{node}", "model": "H100", **seen}]
        )
    end = now - timedelta(minutes=1)
    database.insert("gpu_samples", [
        {"node": "n0", "gpu": 0, "gpu_uuid": "GPU-n0", "ts": end - timedelta(seconds=s), "simulated": False, "sm_clock_mhz": 1_755.0,
         "temperature_celsius": 70.0, "clocks_event_reasons": 0x20 if s < 4 else 4}
        for s in range(20)
    ])  # fmt: skip
    node_row = {
        "gpu": None,
        "gpu_uuid": None,
        "test": "nccl",
        "unit": "GB/s",
        "tool": "all_reduce_perf",
    }
    database.insert("gpu_tests", [
        # An earlier run, a trial on the CPU, and one of last week.
        result("n0", "0" * 12, 1.0, 9, status="fail"), result("n0", "2" * 12, 2.0, 0, simulated=True),
        result("n0", "1" * 12, 500.0), result("n0", "1" * 12, 300.0, **node_row),
        result("n1", "3" * 12, 610.0), result("n2", "4" * 12, 100.0, 60 * 24 * 9), result("n2", "5" * 12, 620.0),
        result("n3", "6" * 12, 9.0, simulated=True), result("n3", "7" * 12, 9.0, status="fail"),
        result("n1", "3" * 12, 310.0, **node_row), result("n2", "5" * 12, 330.0, **node_row),
    ])  # fmt: skip
    facts = await read(database, "n0", now - timedelta(hours=1))
    assert facts is not None
    found = failed(facts)
    assert found["speed"] == "GPU 0 matmul_fp16 500 TFLOP/s, others 615"
    assert found["clocks under load"].startswith("GPU 0 is held down 36% of the time")
    assert {one.name: one.finding for one in checks(facts)}[
        "tests"
    ] == f"2 of run {'1' * 12} passed"
    late = await read(database, "n0", now - timedelta(seconds=30))
    assert late is not None and not late.tests and not late.load
    database.close()
