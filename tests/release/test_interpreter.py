"""The Python of bundles is built from pinned sources alone, and runs wherever it is put."""

import hashlib
import http.server
import io
import platform
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import archive
import interpreter
import pytest
from interpreter import SOURCES, CannotBuild, Interpreter, SourceFile

DATA = b"a source"
GOOD = SourceFile("main/s/small/small_1.orig.tar.xz", hashlib.sha256(DATA).hexdigest())


@pytest.fixture
def mirror(tmp_path, monkeypatch) -> Iterator[str]:
    """The address of a mirror, which has `GOOD`."""
    monkeypatch.setattr(interpreter, "CACHE", tmp_path / "cache")
    path = tmp_path / "mirror/pool" / GOOD.path
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "mirror")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_source_is_fetched_once_from_the_first_mirror_that_has_it(mirror, tmp_path) -> None:
    path = interpreter.fetch(GOOD, (f"{mirror}/empty", mirror))
    assert path.read_bytes() == DATA
    assert interpreter.fetch(GOOD, ("http://127.0.0.1:1",)) == path
    path.write_bytes(b"damaged in the cache")
    assert interpreter.fetch(GOOD, (mirror,)).read_bytes() == DATA


def test_a_source_that_is_not_the_pinned_one_is_refused(mirror) -> None:
    other = SourceFile(GOOD.path, "0" * 64)
    with pytest.raises(CannotBuild, match=r"small_1.orig.tar.xz of http.* is not the pinned one"):
        interpreter.fetch(other, (mirror,))
    assert not list((interpreter.CACHE).rglob("*.xz"))


def test_a_source_that_no_mirror_has_any_more_is_said_with_what_to_do(mirror) -> None:
    gone = SourceFile("main/g/gone/gone_1.orig.tar.xz", "0" * 64)
    with pytest.raises(
        CannotBuild, match=r"gone_1.* cannot be downloaded .*404.*: .* pin that in release"
    ):
        interpreter.fetch(gone, (mirror,))


def test_what_is_built_is_named_by_all_it_depends_on(monkeypatch, tmp_path) -> None:
    before = {interpreter.key(machine) for machine in interpreter.ARCHITECTURES}
    assert len(before) == len(interpreter.ARCHITECTURES)
    monkeypatch.setattr(interpreter, "SOURCES", {**SOURCES, "python": (GOOD, GOOD)})
    assert interpreter.key("x86_64") not in before
    monkeypatch.undo()
    (tmp_path / "build.sh").write_text("another recipe")
    monkeypatch.setattr(interpreter, "RECIPE", tmp_path)
    assert interpreter.key("x86_64") not in before


def test_where_it_cannot_be_built_one_line_says_what_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(interpreter.shutil, "which", lambda _: None)
    monkeypatch.setattr(interpreter.os, "geteuid", lambda: 1000)
    reason = interpreter.why_not()
    assert reason and "root, debootstrap" in reason and "--host-python" in reason
    assert "\n" not in reason


@pytest.fixture(scope="module")
def built() -> Interpreter:
    found = interpreter.cached(platform.machine())
    if found is None:
        pytest.skip("no Python was built for bundles: make test-bundles does")
    return found


def unpacked(built: Interpreter, folder: Path, data: bytes) -> subprocess.CompletedProcess[bytes]:
    folder.mkdir(exist_ok=True)
    program = folder.parent / "unpack"
    program.write_bytes(built.unpack)
    program.chmod(0o755)
    return subprocess.run([program, folder], input=data, capture_output=True, check=False)


def test_what_it_unpacks_to_is_what_tar_unpacks(built, tmp_path) -> None:
    done = unpacked(built, tmp_path / "own", built.python)
    assert (done.returncode, done.stderr) == (0, b"")
    with tarfile.open(fileobj=io.BytesIO(built.python)) as tar:
        tar.extractall(tmp_path / "other")
    compared = subprocess.run(
        ["diff", "-r", tmp_path / "own", tmp_path / "other"], capture_output=True, check=False
    )
    assert (compared.returncode, compared.stdout) == (0, b"")
    modes = [
        {str(p.relative_to(folder)): p.lstat().st_mode for p in folder.rglob("*")}
        for folder in (tmp_path / "own", tmp_path / "other")
    ]
    assert modes[0] == modes[1]
    assert archive.pack(tmp_path / "own", built.machine) == built.python


def test_an_archive_that_is_cut_short_damaged_or_wrong_is_one_line(built, tmp_path) -> None:
    middle = len(built.python) // 2
    damaged = built.python[:middle] + b"damage" + built.python[middle + 6 :]
    for number, data in enumerate((built.python[:middle], damaged, b"", b"not an archive")):
        done = unpacked(built, tmp_path / str(number), data)
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1, done


def test_no_archive_writes_outside_its_folder(built, tmp_path) -> None:
    for name in ("../outside", "/tmp/outside", "a/../../outside"):
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:xz", format=tarfile.USTAR_FORMAT) as tar:
            tar.addfile(tarfile.TarInfo(name))
        done = unpacked(built, tmp_path / "folder", made.getvalue())
        assert done.returncode == 1 and b"not a name within the folder" in done.stderr


def test_it_has_all_modules_and_runs_from_any_folder(built, tmp_path) -> None:
    unpacked(built, tmp_path / "first", built.python)
    (tmp_path / "first").rename(tmp_path / "second")
    names = (
        "_ctypes _decimal _hashlib _posixshmem _queue _sqlite3 _ssl _zoneinfo asyncio bz2 ctypes"
        " lzma multiprocessing.shared_memory mmap pyexpat resource sqlite3 ssl zlib"
    )
    code = (
        f"import sys\nfor name in {names.split()!r}: __import__(name)\n"
        "import sqlite3, ssl; print(sys.prefix)\n"
        "print(ssl.OPENSSL_VERSION.split()[1]); print(sqlite3.sqlite_version)"
    )
    python = tmp_path / "second/bin/python3"
    done = subprocess.run([python, "-IBc", code], capture_output=True, text=True, check=True)
    prefix, openssl, sqlite = done.stdout.splitlines()
    assert prefix == str(tmp_path / "second")
    assert built.about["openssl"].startswith(f"{openssl}-")
    assert built.about["sqlite"].startswith(f"{sqlite}-")


def test_the_terms_of_all_that_is_in_it_are_too(built, tmp_path) -> None:
    unpacked(built, tmp_path / "python", built.python)
    found = {path.name for path in (tmp_path / "python/licenses").iterdir() if path.stat().st_size}
    assert found == {"libbz2-1.0", "libffi7", "liblzma5", "libstdc++6", "openssl", "zlib1g"}
    assert (tmp_path / "python/lib/python3.13/LICENSE.txt").exists()


def test_no_path_of_the_build_is_in_it(built, tmp_path) -> None:
    unpacked(built, tmp_path / "python", built.python)
    program = (tmp_path / "python/bin/python3.13").read_bytes()
    assert [text for text in (b"/src/", b"/root/") if text in program] == []
