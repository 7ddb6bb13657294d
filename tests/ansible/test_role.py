"""The Ansible role and the cloud-init file: linted, and applied to a Debian that boots in a container.

`make test-ansible` runs it, as root. The steps build on each other, in the order of the file.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.systemd.machine import Machine, machine, why_not
from tests.systemd.two_versions import OLD, two_versions, version_here

pytestmark = [pytest.mark.ansible, pytest.mark.systemd, pytest.mark.timeout(900)]

DEPLOY = Path(__file__).parents[2] / "deploy"
ANSIBLE = DEPLOY / "ansible"
CLOUD_INIT = DEPLOY / "cloud-init/agent.yaml"
SSH = """\
#!/bin/sh
# Stands in for ssh: the last argument runs in the machine.
for word; do last=$word; done
exec nsenter --target={leader} --all /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root LC_ALL=C.UTF-8 sh -c "$last"
"""
Play = Callable[..., dict[str, int]]


def needs(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """By part and version."""
    return two_versions(tmp_path_factory.mktemp("bundles"), tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def debian() -> Iterator[Machine]:
    if reason := why_not():
        pytest.skip(reason)
    with machine(has_python=True) as made:
        yield made
        print(made.journal())


@pytest.fixture(scope="module")
def play(
    debian: Machine, bundles: dict[tuple[str, str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Play:
    """Apply the role; what Ansible counted of the host."""
    needs("ansible-playbook")
    folder = tmp_path_factory.mktemp("play")
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(leader=debian._leader()))
    ssh.chmod(0o755)
    (folder / "ansible.cfg").write_text(
        "[defaults]\ninterpreter_python=/usr/bin/python3\n[ssh_connection]\ntransfer_method=piped\npipelining=true\n"
    )

    def run(
        part: str, version: str, *flags: str, fails: bool = False, **more: Any
    ) -> dict[str, int]:
        path = bundles[part, version]
        source = {"source": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        play = [{
            "hosts": "all", "gather_facts": False, "roles": ["gpuwarden"],
            "vars": {"gpuwarden_part": part, "gpuwarden_bundles": {part: source}, **more},
        }]  # fmt: skip
        (folder / "play.yml").write_text(yaml.safe_dump(play))
        env = os.environ | {
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"), "ANSIBLE_ROLES_PATH": str(ANSIBLE / "roles"),
            "ANSIBLE_SSH_EXECUTABLE": str(ssh), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder / "home"), "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        done = subprocess.run(
            ["ansible-playbook", "-i", "gpuhost,", "--diff", *flags, str(folder / "play.yml")],
            env=env, capture_output=True, text=True, check=False, timeout=400, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        counted = re.search(r"gpuhost +: (.*)", done.stdout)
        assert counted, done.stdout
        return {k: int(v) for k, v in (pair.split("=") for pair in counted[1].split())} | {
            "said": done.stdout + done.stderr
        }

    return run


SIMULATED = {
    "collector_url": "https://localhost:8750",
    "backend": "simulator",
    "simulate_gpus": 2,
    "labels": {"rack": "r12", "note": 'a "b"'},
}


def test_ansible_lint_finds_nothing_in_the_role() -> None:
    needs("ansible-lint")
    argv = ["ansible-lint", "--offline", "--nocolor", "--profile", "production", "."]
    done = subprocess.run(argv, cwd=ANSIBLE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_cloud_init_accepts_the_file() -> None:
    needs("cloud-init")
    argv = ["cloud-init", "schema", "--config-file", str(CLOUD_INIT)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_check_of_a_bare_host_changes_nothing(debian: Machine, play: Play) -> None:
    counted = play("collector", version_here(), "--check")
    assert counted["changed"] > 0
    assert (
        debian.run(
            "ls -d /opt/gpuwarden /etc/gpuwarden /var/cache/gpuwarden 2>/dev/null", check=False
        )
        == ""
    )


def test_a_sum_that_is_wrong_stops_it(
    debian: Machine, play: Play, bundles: dict[tuple[str, str], Path]
) -> None:
    wrong = {"collector": {"source": str(bundles["collector", version_here()]), "sha256": "0" * 64}}
    assert "is not the file of gpuwarden_bundles.collector.sha256" in str(
        play(
            "collector",
            version_here(),
            "-e",
            yaml.safe_dump({"gpuwarden_bundles": wrong}, default_flow_style=True),
            fails=True,
        )["said"]
    )
    assert debian.run("ls -d /opt/gpuwarden 2>/dev/null", check=False) == ""


def test_the_collector_installs_and_a_second_run_changes_nothing(
    debian: Machine, play: Play
) -> None:
    play("collector", version_here())
    debian.wait("systemctl is-active gpuwarden-collector")
    assert play("collector", version_here())["changed"] == 0
    assert play("collector", version_here(), "--check")["changed"] == 0


def sql(debian: Machine, query: str) -> str:
    """Rows as CSV, asked over TLS with a token."""
    return debian.run(
        "export GPUWARDEN_URL=https://localhost:8750 GPUWARDEN_TOKEN_FILE=/root/read.token GPUWARDEN_CA=/root/ca.pem;"
        f' gpuwarden sql --format csv "{query}"', check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def enrolment(debian: Machine) -> dict[str, Any]:
    """The collector made reachable; variables that bring an agent in."""
    config = "--config /etc/gpuwarden/collector.toml"
    debian.run(f"gpuwarden collector init --name localhost --host 0.0.0.0 {config}")
    debian.run("systemctl restart gpuwarden-collector")
    debian.run(f"gpuwarden token create --scope read --out /root/read.token {config}")
    debian.run("cp /var/lib/gpuwarden/tls/ca.pem /root/ca.pem")
    line = debian.run(f"gpuwarden token enrolment --collector https://localhost:8750 {config}")
    token, fingerprint = (
        re.search(r"GPUWARDEN_TOKEN=(\S+)", line),
        re.search(r"--ca-fingerprint (\S+)", line),
    )
    assert token and fingerprint, line
    return {"gpuwarden_enrolment_token": token[1], "gpuwarden_ca_fingerprint": fingerprint[1]}


def test_the_role_leaves_the_collectors_file_as_init_wrote_it(
    debian: Machine, play: Play, enrolment: dict[str, Any]
) -> None:
    before = debian.run("cat /etc/gpuwarden/collector.toml")
    assert play("collector", version_here())["changed"] == 0
    assert debian.run("cat /etc/gpuwarden/collector.toml") == before


def test_the_agent_installs_enrolls_with_its_settings_and_ships(
    debian: Machine, play: Play, enrolment: dict[str, Any]
) -> None:
    said = play("agent", OLD, gpuwarden_settings=SIMULATED, **enrolment)["said"]
    assert enrolment["gpuwarden_enrolment_token"] not in str(said)
    labels = "select (labels ->> 'rack') || (labels ->> 'note') from nodes"
    debian.wait_for(lambda: 'r12a ""b""' in sql(debian, labels), "the node's labels")
    debian.wait_for(
        lambda: "2" in sql(debian, "select count(distinct gpu) from gpu_samples"), "samples"
    )
    assert OLD in sql(debian, "select agent_version from nodes")
    assert play("agent", OLD, gpuwarden_settings=SIMULATED, **enrolment)["changed"] == 0
    assert play("agent", OLD, gpuwarden_settings=SIMULATED)["changed"] == 0, (
        "the token is not needed again"
    )


def test_an_upgrade_and_a_changed_setting(debian: Machine, play: Play) -> None:
    more = {**SIMULATED, "simulate_gpus": 3}
    assert play("agent", version_here(), "--check", gpuwarden_settings=more)["changed"] > 0
    assert f"agent-{OLD}" in debian.run("readlink /opt/gpuwarden/agent"), "a check changes nothing"
    play("agent", version_here(), gpuwarden_settings=more)
    assert f"agent-{version_here()}" in debian.run("readlink /opt/gpuwarden/agent")
    debian.wait_for(
        lambda: "3" in sql(debian, "select count(distinct gpu) from gpu_samples"), "the third GPU"
    )
    assert play("agent", version_here(), gpuwarden_settings=more)["changed"] == 0


def test_a_setting_that_is_wrong_leaves_what_runs(debian: Machine, play: Play) -> None:
    before = debian.run("cat /etc/gpuwarden/agent.toml")
    said = play(
        "agent", version_here(), gpuwarden_settings={**SIMULATED, "simulate_gpu": 3}, fails=True
    )["said"]
    assert "simulate_gpu" in str(said)
    assert debian.run("cat /etc/gpuwarden/agent.toml") == before
    assert debian.run("systemctl is-active gpuwarden-agent").strip() == "active"


def test_cloud_init_installs_the_agent(
    debian: Machine, bundles: dict[tuple[str, str], Path]
) -> None:
    debian.run(
        "/opt/gpuwarden/agent/installer uninstall --purge || python3 /opt/gpuwarden/agent/installer uninstall --purge"
    )
    path = bundles["agent", version_here()]
    shutil.copy(path, debian.root / "root/agent.bundle")
    wanted = yaml.safe_load(CLOUD_INIT.read_text())
    for file in wanted["write_files"]:
        target = debian.root / file["path"].lstrip("/")
        text = file["content"]
        if target.suffix == ".env":
            assert set(re.findall(r"^(\w+)=", text, re.MULTILINE)) == {
                "BUNDLE",
                "SHA256",
                "COLLECTOR",
                "ENROLL",
                "GPUWARDEN_TOKEN",
            }
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            text = f"BUNDLE=/root/agent.bundle\nSHA256={digest}\nCOLLECTOR=http://127.0.0.1:8750\nENROLL=\nGPUWARDEN_TOKEN=\n"
        target.write_text(text)
        target.chmod(int(file["permissions"], 8))
    for command in wanted["runcmd"]:
        said = debian.run(" ".join(command))
    assert "gpuwarden-agent.service is active" in said
    assert (
        debian.run(
            "ls /etc/gpuwarden-install.env /var/cache/gpuwarden-agent.bundle 2>/dev/null",
            check=False,
        )
        == ""
    )
