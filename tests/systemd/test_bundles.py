"""From install to alert on a Debian without Python: from a bundle and from a package, on Debian 11 and 12.

`make test-bundles` runs it, as root. What bundles carry is built the first time, which takes minutes.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bundle
import interpreter
import nfpm
import packages
import pytest
from interpreter import Interpreter
from packages import EXTRAS

from .machine import Machine, machine, why_not

pytestmark = [pytest.mark.bundles, pytest.mark.timeout(1800)]

SIZES_MAX = {"agent": 15_000_000, "collector": 120_000_000}
RULE = """\
rules:
  - name: idle_at_once
    severity: info
    labels: [node, gpu, gpu_uuid]
    interval: 2s
    requires: [gpu_samples.util_percent]
    summary: GPU {gpu} of {node} is idle.
    remedy: Use it.
    sql: |
      SELECT node, gpu, gpu_uuid, max(util_percent) AS value FROM gpu_samples
      WHERE ts > $now::TIMESTAMP - INTERVAL 20 SECOND AND ts <= $now::TIMESTAMP
      GROUP BY ALL HAVING value < 5
"""
WAYS = {
    "run": (
        "sh /root/{}.run install",
        "/opt/gpuwarden/{}/bin/gpuwarden-installer uninstall --purge",
    ),
    "deb": ("dpkg -i /root/gpuwarden-{}.deb", "dpkg -P gpuwarden-{}"),
}


@pytest.fixture(scope="session")
def carried() -> Interpreter:
    if reason := why_not():
        pytest.skip(reason)
    try:
        return interpreter.interpreter(platform.machine())
    except interpreter.CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def bundles(carried, tmp_path_factory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("bundles")
    wheel = bundle.build_wheel(out)
    with pytest.MonkeyPatch.context() as patch:
        # The machines have no GPU: the agent has simulated ones, which bundles else leave out.
        patch.setattr(packages, "LEFT_OUT", dict.fromkeys(packages.LEFT_OUT, ()))
        return {
            part: bundle.bundle(
                part, wheel, bundle.packages_of(part, bundle.target_of(carried)), out, carried
            )
            for part in EXTRAS
        }


@pytest.fixture(scope="module", params=["bullseye", "bookworm"])
def debian(request, bundles, tmp_path_factory) -> Iterator[Machine]:
    debs = tmp_path_factory.mktemp("debs")
    with machine(request.param) as made:
        for part, path in bundles.items():
            shutil.copy(path, made.root / f"root/{part}.run")
            shutil.copy(nfpm.package(path, debs, "deb"), made.root / f"root/gpuwarden-{part}.deb")
        yield made
        print(made.journal())


def test_bundles_are_as_small_as_they_are_said_to_be(bundles) -> None:
    sizes = {part: path.stat().st_size for part, path in bundles.items()}
    print(sizes)
    assert [part for part, size in sizes.items() if size > SIZES_MAX[part]] == []


def test_there_is_no_python_on_the_machine(debian) -> None:
    found = debian.run("find / -xdev -name 'python3*' -path '*bin/*' 2>/dev/null", check=False)
    assert found == ""


@pytest.mark.parametrize("way", WAYS)
def test_an_install_comes_to_an_alert_and_a_removal_leaves_nothing(debian, way) -> None:
    install, uninstall = WAYS[way]
    debian.run(install.format("collector"))
    (debian.root / "etc/gpuwarden/rules").mkdir()
    (debian.root / "etc/gpuwarden/rules/idle.yaml").write_text(RULE)
    configured(debian, "collector", 'rules_dirs = ["/etc/gpuwarden/rules"]')
    debian.run(install.format("agent"))
    configured(debian, "agent", 'backend = "simulator"', "simulate_gpus = 2")

    def firing() -> set[int]:
        said = debian.run("gpuwarden alerts list --rule idle_at_once --state firing --format json")
        return {int(row["gpu"]) for row in json.loads(said)}

    # The first simulated GPU is held by a process that runs nothing, the second one trains.
    debian.wait_for(lambda: firing() == {0}, "an alert of the idle GPU", 120)
    versions = debian.run("/opt/gpuwarden/agent/bin/python3 -V").split()
    assert versions[1].startswith(f"{interpreter.VERSION}.")
    debian.run("rm -r /etc/gpuwarden/rules")
    for part in ("agent", "collector"):
        debian.run(uninstall.format(part))
    left = debian.run("ls -d /opt/gpuwarden* /etc/gpuwarden* /var/lib/gpuwarden* /tmp/gpuwarden* 2>/dev/null", check=False)  # fmt: skip
    assert left == ""


def configured(debian: Machine, part: str, *lines: str) -> None:
    path = debian.root / f"etc/gpuwarden/{part}.toml"
    path.write_text("\n".join([*lines, path.read_text()]))
    debian.run(f"systemctl restart gpuwarden-{part}")


def test_a_host_that_lets_no_program_run_in_its_tmp_installs_all_the_same(debian) -> None:
    debian.run("mount -t tmpfs -o noexec tmpfs /tmp")
    assert "unpack /opt/gpuwarden/agent-" in debian.run("sh /root/agent.run install --dry-run")
    debian.run("umount /tmp")


def test_a_host_without_room_is_told_so_and_stays_as_it_is(debian) -> None:
    debian.run("mkdir -p /opt && mount -t tmpfs -o size=60m tmpfs /opt")
    said = debian.run("sh /root/collector.run install", check=False)
    assert said.startswith("gpuwarden installer: /opt/gpuwarden needs ") and said.count("\n") == 1
    assert debian.run("ls -A /opt; ls -d /etc/gpuwarden 2>/dev/null", check=False) == ""
    debian.run("umount /opt")


def test_an_rpm_s_scripts_install_and_remove_the_bundle_that_it_holds(
    debian, bundles, tmp_path
) -> None:
    """Debian's rpm reads it here; there, as on a host of Red Hat's, are its file and scripts."""
    if shutil.which("rpm2cpio") is None or shutil.which("cpio") is None:
        pytest.skip("rpm2cpio or cpio is not installed")
    package = nfpm.package(bundles["agent"], tmp_path, "rpm")
    subprocess.run(
        ["sh", "-c", 'rpm2cpio "$0" | cpio -id --quiet', package], cwd=debian.root, check=True
    )
    for script, argument, active in (("POSTIN", "1", "active"), ("PREUN", "0", "inactive")):
        text = subprocess.check_output(["rpm", "-qp", "--queryformat", f"%{{{script}}}", package])
        (debian.root / "root/script").write_bytes(text)
        debian.run(f"sh /root/script {argument}")
        assert debian.run("systemctl is-active gpuwarden-agent", check=False).strip() == active


def test_the_python_trusts_the_authorities_that_the_host_does(debian) -> None:
    """Red Hat's, which its own OpenSSL would not find: the folder of Debian's is not there."""
    trustme = pytest.importorskip("trustme")
    debian.run("sh /root/agent.run install")
    code = (
        "import ssl; from gpuwarden_cli.host_authorities import use_host_authorities;"
        " use_host_authorities(); print(len(ssl.create_default_context().get_ca_certs()))"
    )
    ask = f"/opt/gpuwarden/agent/bin/python3 -I -c '{code}'"
    debian.run("rm -rf /etc/ssl/certs")
    assert debian.run(ask) == "0\n"
    pem = debian.root / "etc/pki/ca-trust/extracted/pem"
    pem.mkdir(parents=True)
    trustme.CA().cert_pem.write_to_path(pem / "tls-ca-bundle.pem")
    assert debian.run(ask) == "1\n"
