"""The Debian package is what Debian's tools accept, and the same bytes for the same bundle."""

import platform
import shutil
import subprocess
from pathlib import Path

import bundle
import deb
import pytest
from tests.release.wheels import carried_python, own_wheel


@pytest.fixture
def archive(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(bundle, "CACHE", tmp_path / "cache")
    carried = carried_python(platform.machine())
    return bundle.bundle("agent", own_wheel(tmp_path), [], tmp_path, carried)


@pytest.fixture
def package(archive, tmp_path) -> Path:
    for tool in ("dpkg-deb", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    return deb.deb(archive, tmp_path)


def told(*argv: str | Path) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_it_says_what_it_is_and_needs_no_python(package) -> None:
    assert package.name.startswith("gpuwarden-agent_1.2.3_")
    fields = told("dpkg-deb", "--field", package, "Package", "Version", "Depends")
    assert fields == "Package: gpuwarden-agent\nVersion: 1.2.3\nDepends: libc6 (>= 2.31)\n"


def test_that_of_a_bundle_without_python_says_which_it_needs(package, tmp_path) -> None:
    plain = deb.deb(bundle.bundle("agent", own_wheel(tmp_path), [], tmp_path), tmp_path)
    needed = told("dpkg-deb", "--field", plain, "Depends")
    here = bundle.HERE.python
    assert needed.startswith(f"python3 (>= {here}), python3 (<< 3.")
    told("dpkg-deb", "--raw-extract", plain, tmp_path / "x")
    text = (tmp_path / "x/DEBIAN/postinst").read_text()
    assert "python3 /usr/share/gpuwarden-agent/gpuwarden-agent.pyz install" in text


def test_two_builds_are_the_same_bytes(archive, package, tmp_path) -> None:
    (tmp_path / "again").mkdir()
    again = deb.deb(archive, tmp_path / "again")
    assert again.read_bytes() == package.read_bytes()


def test_its_scripts_are_shell_and_run_the_bundle_that_it_holds(archive, package, tmp_path) -> None:
    told("dpkg-deb", "--raw-extract", package, tmp_path / "x")
    for script in ("postinst", "prerm", "postrm"):
        told("sh", "-n", tmp_path / "x/DEBIAN" / script)
    held = tmp_path / "x/usr/share/gpuwarden-agent/gpuwarden-agent.run"
    assert held.read_bytes() == archive.read_bytes()
    for script in ("postinst", "prerm"):
        text = (tmp_path / "x/DEBIAN" / script).read_text()
        assert "sh /usr/share/gpuwarden-agent/gpuwarden-agent.run" in text


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
