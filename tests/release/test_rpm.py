"""The RPM is what rpm reads, and the same bytes for the same bundle."""

import platform
import shutil
import subprocess
from pathlib import Path

import bundle
import pytest
import rpm
from tests.release.wheels import carried_python, own_wheel


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    if reason := rpm.why_not():
        pytest.skip(reason)
    monkeypatch.setattr(bundle, "CACHE", tmp_path / "cache")
    carried = carried_python(platform.machine())
    return bundle.bundle("agent", own_wheel(tmp_path), [], tmp_path, carried)


def told(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_it_says_what_it_is_and_what_it_needs(archive, tmp_path) -> None:
    package = rpm.rpm(archive, tmp_path)
    assert package.name == f"gpuwarden-agent-1.2.3-1.{platform.machine()}.rpm"
    fields = told("rpm", "-qp", "--queryformat", "%{NAME} %{VERSION} %{LICENSE}", package)
    assert fields == "gpuwarden-agent 1.2.3 Apache-2.0"
    needed = told("rpm", "-qp", "--requires", package).splitlines()
    assert [x for x in needed if not x.startswith(("rpmlib(", "/bin/sh"))] == [
        "glibc >= 2.31", "systemd",
    ]  # fmt: skip
    scripts = told("rpm", "-qp", "--scripts", package)
    held = "sh /usr/share/gpuwarden-agent/gpuwarden-agent.run"
    assert f"{held} install" in scripts and f"{held} uninstall" in scripts


def test_a_package_holds_the_bundle_unchanged(archive, tmp_path) -> None:
    if shutil.which("rpm2cpio") is None or shutil.which("cpio") is None:
        pytest.skip("rpm2cpio or cpio is not installed")
    package = rpm.rpm(archive, tmp_path)
    subprocess.run(
        ["sh", "-c", 'rpm2cpio "$0" | cpio -id --quiet', package], cwd=tmp_path, check=True
    )
    held = tmp_path / "usr/share/gpuwarden-agent/gpuwarden-agent.run"
    assert held.read_bytes() == archive.read_bytes()
    assert held.stat().st_mode & 0o777 == 0o755


def test_two_builds_are_the_same_bytes(archive, tmp_path) -> None:
    (tmp_path / "again").mkdir()
    first, second = rpm.rpm(archive, tmp_path), rpm.rpm(archive, tmp_path / "again")
    assert first.read_bytes() == second.read_bytes()
