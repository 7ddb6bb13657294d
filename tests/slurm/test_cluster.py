"""A real Slurm: its jobs become rows, no job waits for us, drained nodes are reported, ended jobs get a comment.

`make test-slurm` runs it, as root. The steps build on each other, in the order of the file.
"""

import csv
import io
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpuwarden_agent.collect.schedulers.slurm_text import SINFO, SQUEUE, parse_jobs, parse_nodes
from gpuwarden_cli.job_summary import parse_comment

from .cluster import HAS_CGROUPS, Cluster, cluster, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.systemd, pytest.mark.timeout(300)]

AGENT = 'backend = "simulator"\nsimulate_gpus = 4\nslurm_controller = true\nnode = "gpunode"\n'
PLUGIN = "Prolog=/etc/slurm/prolog.d/*\nEpilog=/etc/slurm/epilog.d/*\nPrologFlags=Alloc\n"
SOON_S = 20


class Agent:
    """The agent of the node, which can be killed, stopped and started."""

    def __init__(self, slurm: Cluster) -> None:
        self._slurm = slurm
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = self._slurm.start(
            "gpuwarden agent run --config /etc/agent.toml", "agent.log", "gpuwarden"
        )

    def kill(self) -> None:
        self._slurm.run("pkill -KILL -f 'agent [r]un'", check=False)
        self._slurm.wait("! pgrep -f 'agent [r]un'", 10)
        assert self.process
        # nsenter stops when what it runs is stopped, and does not continue by itself.
        self.process.kill()
        self.process.wait(10)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    with cluster() as made:
        (made.root / "etc/agent.toml").write_text(AGENT)
        made.run("install -d -o gpuwarden /var/lib/gpuwarden")
        made.start(
            "gpuwarden collector run --data-dir /var/lib/gpuwarden", "collector.log", "gpuwarden"
        )
        made.wait("gpuwarden sql 'select 1'", 60)
        yield made
        print(made.said("agent.log"), made.said("collector.log"))


@pytest.fixture(scope="module")
def agent(slurm: Cluster) -> Iterator[Agent]:
    made = Agent(slurm)
    made.start()
    yield made


def ask(slurm: Cluster, query: str) -> list[dict[str, str]]:
    said = slurm.run(f'gpuwarden sql --format csv "{query}"')
    return list(csv.DictReader(io.StringIO(said)))


def job_of(slurm: Cluster, job: str) -> dict[str, str]:
    found = ask(slurm, f"select * from slurm_jobs where job = '{job}'")
    return found[0] if found else {}


def submit(slurm: Cluster, script: str, flags: str = "") -> str:
    said = slurm.run(
        f"sbatch --parsable -A physics -o /dev/null {flags} --wrap '{script}'", user="ada"
    )
    return said.strip()


def soon(slurm: Cluster, is_so: Callable[[], Any], what: str) -> float:
    return slurm.wait_for(lambda: bool(is_so()), what, SOON_S)


def ran_well(slurm: Cluster, seconds_max: float = 3) -> str:
    """A job that does nothing: it ends well and at once, whatever became of the agent."""
    began = time.monotonic()
    said = slurm.run(
        "srun -A physics --gres=gpu:1 -t 5 printenv SLURM_JOB_ID", user="ada", timeout_s=30
    )
    assert time.monotonic() - began < seconds_max
    slurm.wait("sinfo -h -o %T | grep -xE 'idle|mixed'", 5)  # a failed script would have drained it
    return said.split()[-1]


def test_install_names_what_slurm_conf_lacks(slurm: Cluster, agent: Agent) -> None:
    said = slurm.run("gpuwarden slurm install")
    assert all(line in said for line in PLUGIN.split())
    conf = slurm.root / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text() + PLUGIN)
    slurm.run("scontrol reconfigure")
    assert (
        slurm.run("gpuwarden slurm install").strip() == "nothing to do: the scripts are up to date"
    )


def test_a_job_is_a_row_within_seconds_and_so_is_its_end(slurm: Cluster, agent: Agent) -> None:
    job = submit(slurm, "sleep 12; exit 3", "--gres=gpu:2 --qos=high -t 10 -J training")
    took = soon(slurm, lambda: job_of(slurm, job).get("gpu_uuids"), "the job's GPUs")
    found = job_of(slurm, job)
    assert (
        found["state"] == "running"
        and found["gpus"] == "2"
        and len(found["gpu_uuids"].split(",")) == 2
    )
    assert (found["username"], found["account"], found["partition"]) == ("ada", "physics", "batch")
    soon(slurm, lambda: job_of(slurm, job).get("qos") == "high", "what the controller knows")
    assert job_of(slurm, job)["time_limit_seconds"] == "600"
    soon(slurm, lambda: job_of(slurm, job).get("ended_at"), "its end")
    soon(slurm, lambda: job_of(slurm, job)["state"] == "failed", "how it ended")
    assert job_of(slurm, job)["exit_code"] == "3"
    print(f"rows of job {job} after {took:.1f} s")


def test_jobs_of_an_array_are_jobs(slurm: Cluster, agent: Agent) -> None:
    job = submit(slurm, "true", "--array=1-2 --gres=gpu:1")
    of_array = f"select job, array_task_id, state from slurm_jobs where array_job_id = '{job}'"
    soon(
        slurm, lambda: [r["state"] for r in ask(slurm, of_array)] == ["completed"] * 2, "both ended"
    )
    assert {row["array_task_id"] for row in ask(slurm, of_array)} == {"1", "2"}


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        ("true", "true"),
        ("mount -t tmpfs -o size=4k,mode=2750 tmpfs /run/gpuwarden-slurm && head -c 4096 /dev/zero > /run/gpuwarden-slurm/fill", "umount /run/gpuwarden-slurm"),
        ("mount -t tmpfs -o ro tmpfs /run/gpuwarden-slurm", "umount /run/gpuwarden-slurm"),
        ("mv /run/gpuwarden-slurm /run/gone && touch /run/gpuwarden-slurm", "rm /run/gpuwarden-slurm; mv /run/gone /run/gpuwarden-slurm"),
        ("mv /run/gpuwarden-slurm /run/gone; groupmod -n other gpuwarden", "groupmod -n gpuwarden other; rm -rf /run/gpuwarden-slurm; mv /run/gone /run/gpuwarden-slurm"),
    ],
    ids=["well", "full", "read only", "a file", "no group"],
)  # fmt: skip
def test_no_job_fails_or_waits_when_notes_cannot_be_written(
    slurm: Cluster, agent: Agent, breaks: str, mends: str
) -> None:
    slurm.run(breaks)
    try:
        ran_well(slurm)
    finally:
        slurm.run(mends)


def test_no_job_fails_or_waits_when_the_agent_hangs(slurm: Cluster, agent: Agent) -> None:
    slurm.run("pkill -STOP -f 'agent [r]un'")
    try:
        job = ran_well(slurm)
    finally:
        slurm.run("pkill -CONT -f 'agent [r]un'")
    soon(slurm, lambda: job_of(slurm, job).get("ended_at"), "the job that ran meanwhile")


def test_the_scripts_take_milliseconds(slurm: Cluster) -> None:
    loop = (
        "for n in 1 2 3 4 5 6 7 8 9 10; do SLURM_JOB_ID=99999 /etc/slurm/{}.d/60-gpuwarden.sh; done"
    )
    for part in ("prolog", "epilog"):
        began = time.monotonic()
        slurm.run(loop.format(part))
        assert time.monotonic() - began < 2, f"ten runs of the {part} and a shell in the cluster"
    slurm.run("rm /run/gpuwarden-slurm/99999*")


def test_an_agent_that_was_away_knows_what_began_and_what_ended(
    slurm: Cluster, agent: Agent
) -> None:
    going = submit(slurm, "sleep 60", "--gres=gpu:1")
    soon(slurm, lambda: job_of(slurm, going), "the job")
    agent.kill()
    ended = ran_well(slurm)
    agent.start()
    soon(slurm, lambda: job_of(slurm, ended).get("ended_at"), "the job of the time between")
    assert job_of(slurm, ended)["gpu_uuids"]
    assert job_of(slurm, going)["state"] == "running"
    slurm.run(f"scancel {going}")
    soon(slurm, lambda: job_of(slurm, going)["state"] == "cancelled", "cancelled")


def test_drain_and_resume_are_rows_and_events(slurm: Cluster, agent: Agent) -> None:
    now = "select state, reason, reason_username from slurm_nodes"
    slurm.run("scontrol update nodename=gpunode state=drain reason='fan | 3 broken'")
    soon(
        slurm,
        lambda: (
            ask(slurm, now)
            == [{"state": "drained", "reason": "fan | 3 broken", "reason_username": "root"}]
        ),
        "drained",
    )
    slurm.run("scontrol update nodename=gpunode state=resume")
    soon(slurm, lambda: ask(slurm, now)[0]["state"] == "idle", "back")
    kinds = [
        row["kind"]
        for row in ask(slurm, "select kind from events where kind like 'slurm_node%' order by ts")
    ]
    assert kinds == ["slurm_node_out", "slurm_node_back"]


def test_ended_jobs_get_a_comment_and_have_a_report(slurm: Cluster, agent: Agent) -> None:
    work = 'timeout 12 sh -c "while :; do :; done"; sleep 50'
    job = submit(slurm, work, "--gres=gpu:2 --mem=300M -t 5 -J a-minute")
    slurm.wait_for(lambda: bool(job_of(slurm, job).get("ended_at")), "the end", 90)
    time.sleep(21)
    said = slurm.run("gpuwarden slurm summarize", timeout_s=150)
    assert f"job {job}: " in said
    text = slurm.run(f"sacct -X -n -P -j {job} -o AdminComment").strip()
    figures = parse_comment(text)
    assert figures is not None and figures["gpus"] == 2 and 60 <= figures["total_time"] <= 70
    node = figures["nodes"]["gpunode"]
    assert len(node["gpu_utilization"]) == 2
    if HAS_CGROUPS:
        assert 2 < node["total_time"] < 20 and node["total_memory"] == 300 * 2**20
        assert 0 < node["used_memory"] < 100 * 2**20
    assert "job" not in slurm.run("gpuwarden slurm summarize"), "each once"
    screen = slurm.run(f"gpuwarden report job {job}")
    assert "a-minute" in screen and "ada/physics" in screen and "GPU 1" in screen
    print(screen)


def test_what_this_slurm_prints_is_understood(slurm: Cluster) -> None:
    asked = submit(slurm, "sleep 30", "--gpus=3 -t 5")
    slurm.wait(f"squeue -h -j {asked} -o %T | grep -q RUNNING", 20)
    quoted = " ".join(f"'{word}'" for word in SQUEUE)
    jobs, bad = parse_jobs(slurm.run(f"TZ=UTC SLURM_TIME_FORMAT=standard {quoted}"))
    assert bad == 0 and {job.username for job in jobs} == {"ada"}
    assert {job.job: job.gpus for job in jobs}[asked] == 3
    slurm.run(f"scancel {asked}")
    nodes, bad = parse_nodes(slurm.run("TZ=UTC " + " ".join(f"'{word}'" for word in SINFO)))
    assert bad == 0 and [node.slurm_node for node in nodes] == ["gpunode"]


def test_scripts_that_slurm_conf_no_longer_names_can_be_removed(
    slurm: Cluster, agent: Agent
) -> None:
    conf = slurm.root / "etc/slurm/slurm.conf"
    conf.write_text(conf.read_text().replace(PLUGIN, ""))
    slurm.run("scontrol reconfigure")
    files = "/etc/slurm/prolog.d/60-gpuwarden.sh /etc/slurm/epilog.d/60-gpuwarden.sh"
    slurm.run(f"rm -r {files} /etc/tmpfiles.d/gpuwarden-slurm.conf /run/gpuwarden-slurm")
    assert slurm.run("find /etc/slurm /etc/tmpfiles.d /run -name '*gpuwarden*'") == ""
    ran_well(slurm)
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
