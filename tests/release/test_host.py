"""Steps carried out on real files: whole or not at all."""

import subprocess
from pathlib import Path

import bundle
import pytest
from gpuwarden_installer import host
from gpuwarden_installer.plan import Link, Refused, Remove, Run, Write
from tests.release.wheels import PACKAGES, own_wheel


@pytest.fixture
def archive(tmp_path) -> Path:
    """A bundle of a small gpuwarden."""
    return bundle.bundle("agent", own_wheel(tmp_path), PACKAGES, tmp_path)


def test_a_folder_is_made_without_pip_and_its_commands_run(archive, tmp_path) -> None:
    folder = tmp_path / "opt" / "agent-1.2.3"
    host.unpack(archive, folder, "1.2.3")
    for environ in ({}, {"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}):
        done = subprocess.run(
            [folder / "bin/gpuwarden"], capture_output=True, text=True, check=True, env=environ
        )
        assert done.stdout == "runs\n"
    assert (folder / host.MARK).read_text() == "1.2.3\n"
    assert not list(folder.rglob("pip*"))
    assert (folder / "installer/gpuwarden_installer/plan.py").exists()
    assert not list((folder / "installer").rglob("*.xz"))
    help_text = subprocess.run(
        [folder / "bin/gpuwarden-installer", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert help_text.startswith("usage: gpuwarden-installer ")


def test_links_change_over_and_what_is_removed_is_gone(archive, tmp_path, capsys) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    current = tmp_path / "current"
    steps = [
        Link(str(current), str(tmp_path / "a")),
        Link(str(current), str(tmp_path / "b")),
        Remove(str(tmp_path / "a")),
        Remove(str(tmp_path / "never was")),
    ]
    host.carry_out(steps, archive, "1.2.3")
    assert current.resolve() == tmp_path / "b"
    assert not (tmp_path / "a").exists()
    assert capsys.readouterr().out.splitlines() == [str(step) for step in steps]


def test_two_installs_do_not_run_at_once(tmp_path) -> None:
    lock = tmp_path / "lock"
    with (
        host.alone(lock),
        pytest.raises(Refused, match="another install runs on this host"),
        host.alone(lock),
    ):
        pass
    with host.alone(lock):
        pass


def test_a_step_that_fails_is_one_line_and_ends_it(archive, tmp_path) -> None:
    fails = Run(("sh", "-c", "echo first >&2; echo the reason >&2; exit 3"))
    with pytest.raises(host.Failed, match=r"^sh -c '.*': the reason$"):
        host.carry_out([fails, Remove(str(archive))], archive, "1.2.3")
    assert archive.exists()
    with pytest.raises(host.Failed, match="Not a directory|File exists"):
        host.carry_out([Write(f"{archive}/x", "")], archive, "1.2.3")
