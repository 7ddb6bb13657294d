"""A bundle is one file that checks itself, brings its Python, and is the same bytes each time."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import archive
import bundle
import pytest
from packages import HERE
from paths import ROOT
from tests.release.wheels import PACKAGES, carried_python, own_wheel

MACHINE = platform.machine()


@pytest.fixture
def runnable(tmp_path) -> Path:
    """A bundle of the agent; its Python is that of this process, behind a script."""
    if shutil.which("xz") is None or shutil.which("tar") is None:
        pytest.skip("xz or tar is not installed")
    return bundle.bundle("agent", own_wheel(tmp_path), PACKAGES, tmp_path, carried_python(MACHINE))


def run(path: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (path.parent / "scratch").mkdir(exist_ok=True)
    env = os.environ | {"TMPDIR": str(path.parent / "scratch")} | environ
    return subprocess.run(
        ["sh", path, *words], capture_output=True, text=True, check=False, env=env
    )


def left(path: Path) -> list[str]:
    return os.listdir(path.parent / "scratch")


def test_the_same_entries_are_the_same_bytes_and_run(tmp_path) -> None:
    entries = {"b.py": b"WORD = 'runs'\n", "__main__.py": b"import b; print(b.WORD)\n"}
    first, second = (bundle.zipped(e, 0) for e in (entries, dict(reversed(entries.items()))))
    assert first == second
    (tmp_path / "x").write_bytes(b"#!/bin/sh\n" + bundle.zipped(entries, 10))
    done = subprocess.run(
        [sys.executable, tmp_path / "x"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "runs\n"


def test_an_archive_is_the_same_bytes_whenever_and_by_whomever_it_was_laid_out(tmp_path) -> None:
    packed = []
    for number, umask in enumerate((0o022, 0o077)):
        before = os.umask(umask)
        try:
            folder = tmp_path / str(number)
            (folder / "b").mkdir(parents=True)
            for name in ("b/one", "a") if number else ("a", "b/one"):
                (folder / name).write_text(name)
                os.utime(folder / name, (number, number))
            (folder / "link").symlink_to("a")
        finally:
            os.umask(before)
        packed.append(archive.pack(folder, "x86_64"))
    assert packed[0] == packed[1]
    (tmp_path / "x").write_bytes(packed[0])
    with tarfile.open(tmp_path / "x") as tar:
        assert tar.getnames() == ["a", "b", "b/one", "link"]
        assert tar.getmember("link").linkname == "a"


def test_a_bundle_for_the_python_of_the_host_is_a_zip_file_alone(tmp_path) -> None:
    path = bundle.bundle("agent", own_wheel(tmp_path), PACKAGES, tmp_path)
    tag = f"cp{HERE.python.replace('.', '')}-{MACHINE}"
    assert path.name == f"gpuwarden-agent-1.2.3-{tag}.pyz"
    with zipfile.ZipFile(path) as made:
        names = set(made.namelist())
        unit = made.read("host/unit").decode()
        manifest = json.loads(made.read("manifest.json"))
        for name, digest in manifest["archives"].items():
            assert hashlib.sha256(made.read(name)).hexdigest() == digest
    assert manifest["carried"] is None
    assert manifest["packages"] == PACKAGES.versions
    assert {"__main__.py", "gpuwarden_installer/plan.py", "packages.tar.xz"} <= names
    assert not {"python.tar.xz", "unpack"} & names
    assert unit == (ROOT / "systemd/gpuwarden-agent.service").read_text()


def test_a_bundle_runs_the_python_that_it_carries_and_leaves_nothing(runnable) -> None:
    assert runnable.name == f"gpuwarden-agent-1.2.3-{MACHINE}.run"
    done = run(runnable, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: sh {runnable.name}")
    assert left(runnable) == []
    assert run(runnable, "instal").returncode == 2
    assert left(runnable) == []


@pytest.mark.parametrize("share", [0.999, 0.5, 0.02])
def test_a_bundle_that_is_cut_short_says_so_and_runs_nothing(runnable, share) -> None:
    data = runnable.read_bytes()
    runnable.write_bytes(data[: int(len(data) * share)])
    done = run(runnable, "install")
    assert done.returncode != 0 and left(runnable) == []
    if share > 0.1:  # else the script itself is cut
        assert done.stderr.endswith("is not whole: fetch it again\n")
        assert done.stderr.count("\n") == 1


def test_a_bundle_with_one_other_byte_says_so_and_runs_nothing(runnable) -> None:
    data = runnable.read_bytes()
    start = data.index(b'\nmain "$@"\n') + 12
    for at in (start, (start + len(data)) // 2, len(data) - 1):
        runnable.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        done = run(runnable, "install")
        assert (done.returncode, left(runnable)) == (1, [])
        assert done.stderr.endswith(f"{runnable} is damaged: fetch it again\n"), at


def made_with(tmp_path: Path, machine: str = MACHINE, **parts: str | bytes) -> Path:
    carried = carried_python(machine, **parts)  # type: ignore[arg-type]
    return bundle.bundle("agent", own_wheel(tmp_path), PACKAGES, tmp_path, carried)


def test_a_bundle_for_another_machine_says_so(tmp_path) -> None:
    done = run(made_with(tmp_path, "pdp11"), "install")
    assert done.stderr.endswith(f"this bundle is for pdp11, and this is {MACHINE}\n")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_a_folder_without_room_or_programs_is_passed_over_for_the_next(tmp_path) -> None:
    picky = b"""#!/bin/sh
case $1 in *scratch/*) echo "bin/python3: No space left on device" >&2; exit 1 ;; esac
exec tar -xJf - -C "$1"
"""
    path = made_with(tmp_path, unpack=picky)
    done = run(path, "--help")
    assert (done.returncode, done.stderr, left(path)) == (0, "", [])


def test_a_host_whose_libraries_are_too_old_is_told_what_is_needed(tmp_path) -> None:
    path = made_with(tmp_path, script="echo 'version GLIBC_2.30 not found' >&2; exit 1")
    done = run(path, "install")
    assert done.stderr == (
        "gpuwarden installer: this host needs glibc 2.31 or newer: version GLIBC_2.30 not found\n"
    )
    assert (done.returncode, left(path)) == (1, [])


def test_packages_are_packed_once_for_the_same_lock(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bundle, "CACHE", tmp_path / "cache")
    lock = tmp_path / "lock"
    lock.write_text("one==1.0\n")

    def install(part, target, site, lock) -> dict[str, str]:
        (site / "one.py").write_text("")
        return {"one": lock.read_text().strip().rpartition("=")[2]}

    monkeypatch.setattr(bundle, "install_packages", install)
    first = bundle.packages_of("agent", HERE, lock=lock)
    with monkeypatch.context() as patch:
        patch.setattr(bundle, "install_packages", lambda *_, **__: pytest.fail("installed again"))
        assert bundle.packages_of("agent", HERE, lock=lock) == first
    lock.write_text("one==1.1\n")
    assert bundle.packages_of("agent", HERE, lock=lock).versions == {"one": "1.1"}
