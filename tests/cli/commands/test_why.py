"""`gpuwarden why` says on one screen what holds a GPU, a node or a job up, and what to do."""

import argparse
import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.rules.diagnosis.scenes import END, Scene, loop

from gpuwarden_cli.commands.why import tell, why
from gpuwarden_cli.main import main
from gpuwarden_rules.testing import MemoryDatabase

STARVING = {"loader_workers": 2, "loader_cpu_percent": 97.0, "loader_saturated_percent": 100.0}


@pytest.fixture
def fleet() -> Iterator[MemoryDatabase]:
    """A starved GPU and one that is fine on n1; a Slurm job on n2 whose first rank is starved."""
    database = MemoryDatabase()
    Scene(loop(0.3, 0.4), process=STARVING).insert(database)
    Scene(loop(0.3, 0.99), index=1).insert(database)
    for index in range(4):
        process = {"job": "77", **(STARVING if index == 0 else {})}
        series = loop(0.3, 0.4 if index == 0 else 1.0)
        power = 0.8 if index == 0 else 0.2
        Scene(series, node="n2", index=index, process=process, power=power).insert(database)
    yield database
    database.close()


async def test_a_gpu_has_verdict_evidence_cost_advice_and_timeline(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await tell(fleet, "n1/0", END, "table") == 1
    shown = capsys.readouterr().out
    assert shown.startswith("GPU 0 of n1 (NVIDIA H100-SXM-80GB), simulated\n")
    assert "LOADER_WORKERS (confidence " in shown
    assert "It costs $1.6" in shown
    assert "  loader workers that are saturated: 100 % (from 60 %)\n" in shown
    assert "num_workers 2 -> 6; " in shown
    (util,) = [line for line in shown.splitlines() if line.startswith("  GPU  ")]
    assert util[-1] == "▄"
    assert await tell(fleet, "gpu-N1-1", END, "table") == 0  # a UUID, in whatever case


async def test_alerts_of_the_gpu_and_its_node_stand_beside_the_verdict(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    def alert(rule: str, **row: object) -> dict[str, object]:
        began_at = END - timedelta(hours=2)
        return {
            "fingerprint": rule, "rule": rule, "severity": "warning", "consequence": "slow_work", "state": "firing", "labels": "{}",
            "summary": "", "remedy": "", "began_at": began_at, "active_at": began_at, "fired_at": began_at,
            "seen_at": END, "simulated": True, "node": "n1", "gpu_uuid": "GPU-n1-0", **row,
        }  # fmt: skip

    rows = [
        alert("gpu_idle_held", usd_per_hour=2.95),
        alert("port_down", severity="critical", gpu_uuid=None, muted="silence of bob"),
        alert("pending", fired_at=None, state="pending"),
        alert("over", state="resolved", resolved_at=END - timedelta(minutes=1)),
        alert("of_another_gpu", gpu_uuid="GPU-n1-1"),
        alert("of_another_node", gpu_uuid=None, node="n2"),
    ]
    fleet.insert("alerts", rows)
    await tell(fleet, "n1/0", END, "table")
    alerts = capsys.readouterr().out.partition("\nAlerts\n")[2].partition("\n\n")[0]
    assert alerts.splitlines() == [
        "  critical  port_down since 2026-01-01 10:00 UTC (muted: silence of bob)",
        "  warning   gpu_idle_held since 2026-01-01 10:00 UTC, $5.90 so far",
    ]
    await tell(fleet, "n1/0", END - timedelta(seconds=90), "table")
    assert "  warning   over since" in capsys.readouterr().out
    fleet.insert("alerts", [alert(f"more{number}", fired_at=END) for number in range(5)])
    await tell(fleet, "n1/0", END, "table")
    assert "  and 2 more: `gpuwarden alerts list`\n" in capsys.readouterr().out


async def test_a_job_names_the_rank_that_holds_it_up(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await tell(fleet, "77", END, "table") == 1
    shown = capsys.readouterr().out
    assert shown.startswith("job 77: 4 GPUs of n2\nEfficiency 40 %\n")
    assert "GPU 0 of n2 holds up 3 other GPUs of the job" in shown.replace("\n  ", " ")
    assert shown.count("waits_for_peer") == 3


async def test_what_a_launcher_joins_on_several_nodes_is_one_job(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = {"rendezvous": "10.0.0.7:29500", "world_size": 2}
    Scene(loop(0.3, 0.4), node="n4", process={**rank, "rank": 0, **STARVING}).insert(fleet)
    Scene(loop(0.3, 1.0), node="n5", process={**rank, "rank": 1}, power=0.2).insert(fleet)
    await tell(fleet, "10.0.0.7:29500", END, "table")
    shown = capsys.readouterr().out
    assert shown.startswith("job at 10.0.0.7:29500: 2 GPUs of 2 nodes\n")
    assert "GPU 0 of n4 holds up 1 other GPU of the job" in shown.replace("\n  ", " ")
    await tell(fleet, "n5/0", END, "table")
    assert "It waits for GPU 0 of n4, which is loader_workers." in capsys.readouterr().out


async def test_a_node_is_a_table_and_json_is_for_programs(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await tell(fleet, "n1", END, "table") == 1
    assert "loader_workers" in capsys.readouterr().out
    await tell(fleet, "n2", END, "json")
    found = json.loads(capsys.readouterr().out)
    assert [d["bottleneck"] for d in found] == ["loader_workers"] * 2 + ["waits_for_peer"] * 3
    assert found[1]["evidence"][0].keys() == {"feature", "value", "comparison", "threshold", "text"}


async def test_a_name_that_nothing_has_is_one_line(fleet: MemoryDatabase) -> None:
    said = r"no GPU, node or running job is called .*there are n1/0"
    for target in ("", "%", "n_", "'; DROP TABLE gpus --", "n1/7"):
        with pytest.raises(ValueError, match=said):
            await tell(fleet, target, END, "table")


def of_node(node: str, **row: object) -> dict[str, object]:
    return {"node": node, "agent_id": "a", "boot_id": "b", "simulated": False, **row}


async def test_a_lost_gpu_is_shown_with_what_is_known_and_its_alerts(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    lost_at = END - timedelta(minutes=20)
    gpu = {
        "gpu_uuid": "GPU-lost",
        "node": "n1",
        "gpu": 2,
        "model": "H100",
        "pci_bus_id": "0000:3b:00.0",
        "simulated": False,
    }
    fleet.insert("gpus", [gpu])
    sample = {"ts": lost_at, "node": "n1", "gpu": 2, "gpu_uuid": "GPU-lost", "simulated": False}
    fleet.insert("gpu_samples", [sample])
    fleet.insert(
        "events",
        [{**sample, "kind": "gpu_lost", "severity": "critical", "message": "it fell off the bus"}],
    )
    times = {"active_at": lost_at, "began_at": lost_at, "fired_at": lost_at, "seen_at": END}
    alert = {"fingerprint": "x", "rule": "gpu_lost", "severity": "critical", "consequence": "lost_work", "state": "firing", "labels": "{}",
             "summary": "", "remedy": "", "simulated": False, "node": "n1", "gpu_uuid": "GPU-lost", **times}  # fmt: skip
    fleet.insert("alerts", [alert])
    assert await tell(fleet, "n1/2", END, "table") == 1
    shown = capsys.readouterr().out
    assert shown.startswith("GPU 2 of n1 (H100), 0000:3b:00.0\n\nLOST\n")
    words = " ".join(shown.split())
    assert (
        "The last sample of the GPU is of 2026-01-01 11:40:00 UTC. The agent of n1 reports."
        in words
    )
    assert "critical 11:40:00 gpu_lost: it fell off the bus" in words
    assert "Alerts critical gpu_lost since 2026-01-01 11:40 UTC" in words
    assert "What to do On n1: `nvidia-smi -L`" in words
    # Nor is it left out where its node is asked for.
    assert await tell(fleet, "n1", END, "table") == 1
    assert "LOST" in capsys.readouterr().out
    await tell(fleet, "n1", END, "json")
    records = json.loads(capsys.readouterr().out)
    assert [record.get("verdict") for record in records][-2:] == [None, "lost"]


@pytest.mark.parametrize(
    ("minutes", "code", "said"),
    [(0, 0, "NO GPU The agent of login reports. No GPU has ever been seen there, and no driver."),
     (30, 1, "SILENT Nothing has come from login since 2026-01-01 11:30:00 UTC.")],
)  # fmt: skip
async def test_a_node_without_gpus_is_shown_with_what_is_known(
    fleet: MemoryDatabase, capsys: pytest.CaptureFixture[str], minutes: int, code: int, said: str
) -> None:
    fleet.insert("nodes", [of_node("login", os="Debian 12", cpus=32)])
    at = END - timedelta(minutes=minutes)
    fleet.insert(
        "host_samples", [{"ts": at, "node": "login", "simulated": False, "cpu_irq_percent": 5.0}]
    )
    event = {
        "ts": at,
        "node": "login",
        "kind": "driver_not_loaded",
        "severity": "critical",
        "message": "no module",
    }
    fleet.insert("events", [{**event, "simulated": False}])
    assert await tell(fleet, "login", END, "table") == code
    shown = capsys.readouterr().out
    assert shown.startswith("Node login (Debian 12, 32 CPUs)\n")
    assert said in " ".join(shown.split())
    assert "driver_not_loaded: no module" in shown
    assert await tell(fleet, "login", END, "json") == code
    assert json.loads(capsys.readouterr().out)[0]["node"] == "login"


def test_an_instant_that_is_none_and_a_collector_that_is_not_there_are_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match="--at rubbish is not a time"):
        why(argparse.Namespace(at="rubbish", url=None, target="n1", format="table"))
    assert main(["why", "n1", "--url", "http://127.0.0.1:1"]) == 2
    assert "no collector answers at http://127.0.0.1:1" in capsys.readouterr().err
