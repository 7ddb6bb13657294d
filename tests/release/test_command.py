"""An installer answers a wrong call, a wrong host and a damaged bundle with a sentence."""

import ast
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import bundle
import pytest
from gpuwarden_installer import command
from gpuwarden_installer.plan import Refused
from tests.release.wheels import PACKAGES, own_wheel


@pytest.fixture
def archive(tmp_path) -> Path:
    return bundle.bundle("agent", own_wheel(tmp_path), PACKAGES, tmp_path)


def run(archive: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, archive, *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_host_without_systemd_is_told_so(archive) -> None:
    if Path("/run/systemd/system").is_dir():
        pytest.skip("this host runs systemd")
    code, said = run(archive, "install", "--dry-run")
    assert code == 1
    assert said.startswith("gpuwarden installer: this host does not run systemd: ")
    assert said.count("\n") == 1


def test_a_bundle_for_another_python_or_machine_is_refused(archive) -> None:
    manifest = command.read_manifest(archive)
    command.check_python(manifest)
    for wrong in ({"python": "3.99"}, {"machine": "pdp11"}):
        with pytest.raises(Refused, match=r"this bundle is for Python 3\.\d+ on \w+, and this is"):
            command.check_python(manifest | wrong)
    with pytest.raises(Refused, match="has a Python of its own: run it with sh"):
        command.check_python(manifest | {"python": "3.99", "carried": {"python": "3.99.1"}})


def test_a_damaged_bundle_is_refused_before_anything_is_done(archive, tmp_path) -> None:
    manifest = command.read_manifest(archive)
    read = command.read_bundle(archive, manifest)
    assert read.folder == f"/opt/gpuwarden/agent-1.2.3-{manifest['digest'][:8]}"
    data = archive.read_bytes()
    damaged = tmp_path / "damaged.pyz"
    with zipfile.ZipFile(archive) as made:
        packed = made.read("gpuwarden.tar.xz")
    damaged.write_bytes(data.replace(packed, packed[:-1] + b"?"))
    with pytest.raises(Refused, match="is damaged: fetch the bundle again"):
        command.read_bundle(damaged, manifest)


def test_options_of_an_install_become_settings(archive) -> None:
    words = ["install", "--set", "node=n1", "--collector", "https://c:8750", "--enroll", "--x", "y"]
    args = command.parser().parse_args(words)
    assert command.settings_from(args) == {"node": "n1", "collector_url": "https://c:8750"}
    assert args.enroll == ["--x", "y"]
    with pytest.raises(Refused, match="--set node: say NAME=VALUE"):
        command.settings_from(command.parser().parse_args(["install", "--set", "node"]))


def test_what_is_left_on_the_host_does_not_install(archive, tmp_path) -> None:
    shutil.unpack_archive(archive, tmp_path / "installer", "zip")
    assert command.read_manifest(tmp_path / "installer") == command.read_manifest(archive)
    code, said = run(tmp_path / "installer", "install", "--dry-run")
    assert (code, "only a bundle installs" in said) == (1, True)


def test_an_old_python_can_read_the_entry_and_is_told_what_is_needed() -> None:
    text = (bundle.ROOT / "release/entry.py").read_text()
    ast.parse(text, feature_version=(3, 4))
    older = text.replace("sys.version_info <", "(3, 6) <").replace("sys.version_info[:2]", "(3, 6)")
    done = subprocess.run(
        [sys.executable, "-c", older], capture_output=True, text=True, check=False
    )
    assert done.stderr.startswith("gpuwarden needs Python 3.11 or newer and this is 3.6: ")
