"""Steps carried out on real files: whole or not at all, and a damaged wheel is never laid out."""

import base64
import hashlib
import subprocess
import zipfile
from pathlib import Path

import bundle
import pytest
from gpuwarden_installer import host
from gpuwarden_installer.plan import Link, Refused, Remove, Run, Write

WHEEL = "one-1.0-py3-none-any.whl"
MODULE = "def main():\n    print('runs')\n"


def wheel(folder: Path, *, text: str = MODULE) -> Path:
    """A wheel with one module and one command; its record is that of MODULE."""
    info = "one-1.0.dist-info"
    files = {
        "one.py": MODULE,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: one\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\none = one:main\n",
    }
    record = "".join(f"{n},sha256={digest(t)},{len(t)}\n" for n, t in files.items())
    files |= {"one.py": text, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w") as made:
        for name, content in files.items():
            made.writestr(name, content)
    return path


def digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()


@pytest.fixture
def archive(tmp_path) -> Path:
    """A bundle with one small wheel."""
    own = tmp_path / "gpuwarden-1.2.3-py3-none-any.whl"
    own.write_bytes(wheel(tmp_path).read_bytes())
    path = tmp_path / "bundle.pyz"
    entries = {f"wheels/{WHEEL}": wheel(tmp_path).read_bytes(), "manifest.json": b"{}"}
    bundle.write_archive(path, entries | {"gpuwarden_installer/plan.py": b""})
    return path


def test_an_environment_is_made_without_pip_and_its_commands_run(archive, tmp_path) -> None:
    folder = tmp_path / "opt" / "agent-1.2.3"
    host.unpack(archive, folder, "1.2.3")
    done = subprocess.run([folder / "bin/one"], capture_output=True, text=True, check=True)
    assert done.stdout == "runs\n"
    assert (folder / host.MARK).read_text() == "1.2.3\n"
    assert not list(folder.rglob("pip*"))
    assert (folder / "installer/gpuwarden_installer/plan.py").exists()
    assert not (folder / "installer/wheels").exists()


def test_a_wheel_that_is_not_what_its_record_says_is_refused(tmp_path) -> None:
    bad = wheel(tmp_path, text=MODULE.replace("runs", "ruin"))
    with pytest.raises(host.Failed, match=f"{WHEEL}: .*the bundle is damaged, fetch it again"):
        host.install_wheel(bad, tmp_path / "env")
    assert not list((tmp_path / "env").rglob("one.py"))


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
