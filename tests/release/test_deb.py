"""The Debian package is what Debian's tools accept, and the same bytes for the same bundle."""

import shutil
import subprocess
from pathlib import Path

import deb
import pytest

NAME = "gpuwarden-agent-1.2.3rc1-cp311-x86_64.pyz"


@pytest.fixture
def package(tmp_path) -> Path:
    for tool in ("dpkg-deb", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    (tmp_path / NAME).write_bytes(b"#!/usr/bin/env python3\nprint('bundle')\n")
    return deb.deb("agent", tmp_path / NAME, tmp_path)


def told(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_it_says_what_it_is_and_which_python_it_needs(package) -> None:
    assert package.name.startswith("gpuwarden-agent_1.2.3~rc1_")
    fields = told("dpkg-deb", "--field", package, "Package", "Version", "Depends")
    assert fields == (
        "Package: gpuwarden-agent\nVersion: 1.2.3~rc1\nDepends: python3 (>= 3.11), python3 (<< 3.12)\n"
    )


def test_two_builds_are_the_same_bytes(package, tmp_path) -> None:
    (tmp_path / "again").mkdir()
    again = deb.deb("agent", tmp_path / NAME, tmp_path / "again")
    assert again.read_bytes() == package.read_bytes()


def test_its_scripts_are_shell_and_run_the_bundle_that_it_holds(package, tmp_path) -> None:
    told("dpkg-deb", "--raw-extract", package, tmp_path / "x")
    for script in ("postinst", "prerm", "postrm"):
        told("sh", "-n", tmp_path / "x/DEBIAN" / script)
    held = tmp_path / "x/usr/share/gpuwarden-agent/gpuwarden-agent.pyz"
    assert held.read_bytes() == (tmp_path / NAME).read_bytes()
    for script in ("postinst", "prerm"):
        text = (tmp_path / "x/DEBIAN" / script).read_text()
        assert "/usr/share/gpuwarden-agent/gpuwarden-agent.pyz" in text


def test_lintian_has_nothing_to_say(package) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    assert told("lintian", "--allow-root", package) == ""


@pytest.mark.parametrize(
    ("older", "newer"), [("1.0.0.dev1", "1.0.0a1"), ("1.0.0rc1", "1.0.0"), ("1.9.0", "1.10.0")]
)
def test_debian_sorts_our_versions_as_we_do(older, newer) -> None:
    if shutil.which("dpkg") is None:
        pytest.skip("dpkg is not installed")
    versions = deb.debian_version(older), deb.debian_version(newer)
    told("dpkg", "--compare-versions", versions[0], "lt", versions[1])
