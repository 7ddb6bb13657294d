"""`gpuwarden nodes|gpus|jobs|users list|show` against a collector with a small fleet."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cli.commands.test_report import stored

from gpuwarden.clock import SystemClock
from gpuwarden_cli.main import main
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings

pytestmark = pytest.mark.slow
GIB = 2**30
Answers = dict[str, tuple[int, str, str]]
HERE = {"agent_id": "a", "boot_id": "b", "simulated": False}
JSON = "--format json"
COMMANDS = (
    f"nodes list {JSON}",
    f"nodes list --label rack=r2 {JSON}",
    f"nodes list --model a100 {JSON}",
    f"nodes list --state silent {JSON}",
    "nodes list --label rack=r9",
    "nodes list --label rack",
    f"nodes show n1 {JSON}",
    "nodes show n7",
    f"gpus list {JSON}",
    "gpus list --state busy --format csv",
    f"gpus list --user bob --node n* {JSON}",
    f"gpus list --job 7 --label rack=r1 {JSON}",
    "gpus show n1/0",
    f"gpus show gpu-b {JSON}",
    "gpus show GPU-",
    "gpus show n1/9",
    f"jobs list {JSON}",
    f"jobs list --state all --user bob --since 6h {JSON}",
    f"jobs list --label rack=r2 --state all {JSON}",
    "jobs list --since soon",
    "jobs show 7",
    "jobs show 99",
    f"users list {JSON}",
    f"users list --job 5 --state all {JSON}",
    f"users show bob {JSON}",
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Exit code, output and errors of each command. ada's job 7 works on both GPUs of n1; a scheduler has
    given bob the GPU of n2, and his job 5 has ended; n3 is silent."""
    data = tmp_path_factory.mktemp("store")
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    hour = now.replace(minute=0, second=0) - timedelta(hours=2)
    gpus = [("n1", 0, "GPU-aaaa", "H100", 90.0), ("n1", 1, "GPU-abbb", "H100", 95.0), ("n2", 0, "GPU-bbbb", "A100", 0.0)]  # fmt: skip
    seen = [("n1", '{"rack": "r1"}', now), ("n2", '{"rack": "r2"}', now), ("n3", "{}", now - timedelta(hours=5))]  # fmt: skip
    of = {uuid: {"node": node, "gpu": gpu, "gpu_uuid": uuid, "simulated": False} for node, gpu, uuid, _, _ in gpus}  # fmt: skip
    used = {"seconds": 3600.0, "ts": hour, "simulated": False}
    stored(
        data,
        nodes=[{"node": name, **HERE, "labels": labels, "last_seen_at": at} for name, labels, at in seen],
        gpus=[{**of[uuid], "model": model, "usd_per_hour": 2.0, "last_seen_at": now} for _, _, uuid, model, _ in gpus],
        gpu_samples=[{**of[uuid], "ts": now, "util_percent": util, "memory_used_bytes": 8 * GIB} for _, _, uuid, _, util in gpus],
        process_samples=[{**of[uuid], "ts": now, "pid": 7, "username": "ada", "slurm_job_id": "7", "gpu_memory_bytes": 8 * GIB, "started_at": hour} for uuid in ("GPU-aaaa", "GPU-abbb")],
        allocation_samples=[{**of["GPU-bbbb"], "ts": now, "scheduler": "slurm", "owner": "8", "username": "bob", "slurm_job_id": "8", "processes": 0}],
        waste_1h=[
            {**of["GPU-aaaa"], **used, "label": "busy", "username": "ada", "slurm_job_id": "7", "usd": 2.0},
            {**of["GPU-bbbb"], **used, "label": "idle_held", "username": "bob", "slurm_job_id": "5", "usd": 2.0},
        ],
    )  # fmt: skip
    found: Answers = {}

    async def asked() -> None:
        settings = CollectorSettings(port=0, data_dir=data, threads=1)
        async with running(settings, SystemClock()) as collector:
            for command in COMMANDS:
                words = [*command.split(), "--url", collector.url]
                found[command] = await asyncio.to_thread(_run, words)

    asyncio.run(asked())
    return found


def _run(words: list[str]) -> tuple[int, str, str]:
    import contextlib
    import io

    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()


def rows(answers: Answers, command: str) -> list[dict[str, Any]]:
    code, out, err = answers[f"{command} {JSON}"]
    assert (code, err) == (0, ""), command
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_nodes_are_listed_by_label_model_and_state(answers: Answers) -> None:
    states = {row["node"]: (row["state"], row["gpus"]) for row in rows(answers, "nodes list")}
    assert states == {"n1": ("reports", 2), "n2": ("reports", 1), "n3": ("silent", None)}
    assert [row["node"] for row in rows(answers, "nodes list --label rack=r2")] == ["n2"]
    assert [row["node"] for row in rows(answers, "nodes list --model a100")] == ["n2"]
    assert [row["node"] for row in rows(answers, "nodes list --state silent")] == ["n3"]
    assert answers["nodes list --label rack=r9"][1] == "No node is like that.\n"
    assert answers["nodes list --label rack"][2] == (
        "gpuwarden: --label rack is not NAME=VALUE, such as rack=r12\n"
    )


def test_gpus_are_listed_with_their_state_and_holder(answers: Answers) -> None:
    listed = rows(answers, "gpus list")
    assert [(r["gpu_uuid"], r["state"], r["user"], r["job"]) for r in listed] == [
        ("GPU-aaaa", "busy", "ada", "7"),
        ("GPU-abbb", "busy", "ada", "7"),
        ("GPU-bbbb", "allocated_idle", "bob", "8"),
    ]
    assert answers["gpus list --state busy --format csv"][1].count("\n") == 3
    assert [r["gpu_uuid"] for r in rows(answers, "gpus list --user bob --node n*")] == ["GPU-bbbb"]
    assert len(rows(answers, "gpus list --job 7 --label rack=r1")) == 2


def test_jobs_and_users_are_those_that_run_and_those_of_a_time(answers: Answers) -> None:
    jobs = {r["job"]: (r["user"], r["state"], r["gpus"], r["gpu_hours"]) for r in rows(answers, "jobs list")}  # fmt: skip
    assert jobs == {"7": ("ada", "running", 2, 1.0), "8": ("bob", "running", 1, None)}
    of_bob = rows(answers, "jobs list --state all --user bob --since 6h")
    assert [(r["job"], r["state"], r["wasted_hours"]) for r in of_bob] == [
        ("8", "running", None),
        ("5", "ended", 1.0),
    ]
    assert {r["job"] for r in rows(answers, "jobs list --label rack=r2 --state all")} == {"5", "8"}
    users = {r["user"]: (r["gpus"], r["wasted_usd"]) for r in rows(answers, "users list")}
    assert users == {"ada": (2, None), "bob": (1, 2.0)}
    assert [r["user"] for r in rows(answers, "users list --job 5 --state all")] == ["bob"]
    assert answers["jobs list --since soon"][2] == (
        "gpuwarden: --since soon is not a duration; write 6h or 7d\n"
    )


def test_one_is_shown_with_its_parts(answers: Answers) -> None:
    (node,) = rows(answers, "nodes show n1")
    assert (node["state"], len(node["gpus"])) == ("reports", 2)
    code, out, _ = answers["gpus show n1/0"]
    assert code == 0
    assert "gpu_uuid" in out and "GPU-aaaa" in out and "HELD BY" in out and "HOURS" in out
    (gpu,) = rows(answers, "gpus show gpu-b")
    assert gpu["gpu_uuid"] == "GPU-bbbb"
    assert gpu["hours"][0] | {"energy_kwh": None} == {"label": "idle_held", "gpu_hours": 1, "usd": 2, "energy_kwh": None}  # fmt: skip
    assert "GPUS NOW" in answers["jobs show 7"][1]
    (user,) = rows(answers, "users show bob")
    assert [job["job"] for job in user["jobs"]] == ["8", "5"]


def test_a_name_that_is_none_or_several_is_said(answers: Answers) -> None:
    for command, said in (
        ("nodes show n7", "there is no node n7; `gpuwarden nodes list` has their names"),
        ("gpus show n1/9", "there is no GPU n1/9; write NODE/INDEX"),
        ("gpus show GPU-", "there are 3 of that name: n1/0, n1/1, n2/0"),
        ("jobs show 99", "there is no job 99 since 1d; `gpuwarden jobs list --state all`"),
    ):
        code, out, err = answers[command]
        assert (code, out) == (2, "")
        assert said in err
