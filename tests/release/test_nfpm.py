"""Packages are what the tools of Debian and Red Hat accept, and the same bytes for the same bundle."""

import platform
import shutil
import subprocess
from pathlib import Path

import bundle
import nfpm
import pytest
from interpreter import ARCHITECTURES
from tests.release.wheels import PACKAGES, carried_python, own_wheel

MACHINE = platform.machine()
INSTALLED = "usr/share/gpuwarden-agent/gpuwarden-agent.run"


@pytest.fixture
def archive(tmp_path) -> Path:
    carried = carried_python(MACHINE)
    return bundle.bundle("agent", own_wheel(tmp_path), PACKAGES, tmp_path, carried)


def needs(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def output(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_a_deb_says_what_it_is_and_needs_no_python(archive, tmp_path) -> None:
    needs("dpkg-deb")
    package = nfpm.package(archive, tmp_path, "deb")
    assert package.name == f"gpuwarden-agent_1.2.3_{ARCHITECTURES[MACHINE]}.deb"
    names = ("Package", "Version", "Pre-Depends", "Depends")
    assert output("dpkg-deb", "--field", package, *names).splitlines() == [
        "Package: gpuwarden-agent", "Version: 1.2.3", "Pre-Depends: systemd (>= 247)",
        "Depends: libc6 (>= 2.31)",
    ]  # fmt: skip


def test_a_deb_has_the_bundle_unchanged_and_scripts_that_run_it(archive, tmp_path) -> None:
    needs("dpkg-deb")
    root = tmp_path / "root"
    output("dpkg-deb", "--raw-extract", nfpm.package(archive, tmp_path, "deb"), root)
    assert (root / INSTALLED).read_bytes() == archive.read_bytes()
    assert (root / INSTALLED).stat().st_mode & 0o777 == 0o755
    scripts = {name: root / "DEBIAN" / name for name in ("postinst", "prerm", "postrm")}
    for script in scripts.values():
        output("sh", "-n", script)
    assert f"/{INSTALLED} install" in scripts["postinst"].read_text()
    assert f"/{INSTALLED} uninstall" in scripts["prerm"].read_text()
    purge = scripts["postrm"].read_text()
    assert "rm -rf /var/lib/gpuwarden-agent /etc/gpuwarden/agent.toml" in purge


def test_an_rpm_has_the_bundle_unchanged_and_scripts_that_run_it(archive, tmp_path) -> None:
    needs("rpm", "rpm2cpio", "cpio")
    package = nfpm.package(archive, tmp_path, "rpm")
    unpack = ["sh", "-c", 'rpm2cpio "$0" | cpio -id --quiet', package]
    subprocess.run(unpack, cwd=tmp_path, check=True)
    assert (tmp_path / INSTALLED).read_bytes() == archive.read_bytes()
    assert (tmp_path / INSTALLED).stat().st_mode & 0o777 == 0o755
    scripts = output("rpm", "-qp", "--scripts", package)
    assert f"/{INSTALLED} install" in scripts and f"/{INSTALLED} uninstall" in scripts
    assert "purge" not in scripts


@pytest.mark.parametrize(
    ("script", "word", "runs"),
    [
        ("postinstall.sh", "configure", "install"),  # dpkg
        ("postinstall.sh", "abort-upgrade", ""),
        ("postinstall.sh", "1", "install"),  # rpm
        ("postinstall.sh", "2", "install"),
        ("preremove.sh", "remove", "uninstall"),
        ("preremove.sh", "upgrade", ""),
        ("preremove.sh", "0", "uninstall"),
        ("preremove.sh", "1", ""),
    ],
)
def test_scripts_run_the_bundle_when_dpkg_and_rpm_mean_it(tmp_path, script, word, runs) -> None:
    text = (Path(nfpm.__file__).with_name(script)).read_text()
    text = text.replace("/run/systemd/system", "/").replace("@installed@", "echo")
    (tmp_path / "script").write_text(text)
    assert output("sh", tmp_path / "script", word).strip() == runs


@pytest.mark.parametrize("form", nfpm.FORMATS)
def test_two_builds_are_the_same_bytes(archive, tmp_path, form) -> None:
    (tmp_path / "again").mkdir()
    first, second = (nfpm.package(archive, out, form) for out in (tmp_path, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("older", "newer"), [("1.0.0.dev1", "1.0.0a1"), ("1.0.0rc1", "1.0.0"), ("1.9.0", "1.10.0")]
)
def test_debian_sorts_our_versions_as_we_do(older, newer) -> None:
    needs("dpkg")
    versions = nfpm.package_version(older), nfpm.package_version(newer)
    output("dpkg", "--compare-versions", versions[0], "lt", versions[1])


def test_a_version_that_is_not_final_is_that_of_the_packages(tmp_path) -> None:
    needs("dpkg-deb", "rpm")
    own, carried = own_wheel(tmp_path, "1.2.3rc1"), carried_python(MACHINE)
    pre = bundle.bundle("agent", own, PACKAGES, tmp_path, carried)
    deb, rpm = (nfpm.package(pre, tmp_path, form) for form in nfpm.FORMATS)
    assert output("dpkg-deb", "--field", deb, "Version") == "1.2.3~rc1\n"
    assert output("rpm", "-qp", "--queryformat", "%{VERSION}", rpm) == "1.2.3~rc1"
