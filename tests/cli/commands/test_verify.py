"""Nothing that was changed after it was signed passes for a release."""

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from minisign import KeyPair

from gpuwarden_cli.main import main

KEYS = KeyPair.generate()


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A folder with a file, signed sums, and the key that was there before."""
    (tmp_path / "a.run").write_bytes(b"content")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'content').hexdigest()}  a.run\n")
    (tmp_path / "release.pub").write_bytes(bytes(KEYS.public_key))
    sign(tmp_path, KEYS)
    return tmp_path


def sign(folder: Path, keys: KeyPair) -> None:
    content = (folder / "SHA256SUMS").read_bytes()
    signature = keys.secret_key.sign(content, trusted_comment="release of a")
    (folder / "SHA256SUMS.minisig").write_bytes(bytes(signature))


def run(released: Path, capsys: Any, *more: str) -> tuple[int, str, str]:
    words = ["verify", str(released / "a.run"), "--key", str(released / "release.pub"), *more]
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_what_was_signed_is_ok(released: Path, capsys: Any) -> None:
    code, out, _ = run(released, capsys)
    assert (code, out) == (0, f"{released / 'a.run'}: ok, release of a\n")
    line = KEYS.public_key.to_base64().decode()
    assert main(["verify", str(released / "a.run"), "--key", line]) == 0


def test_a_changed_file_is_refused(released: Path, capsys: Any) -> None:
    (released / "a.run").write_bytes(b"content!")
    code, out, err = run(released, capsys)
    assert (code, out) == (2, "") and "is not what was signed: do not install it" in err


def test_changed_file_and_sums_are_refused(released: Path, capsys: Any) -> None:
    (released / "a.run").write_bytes(b"other")
    (released / "SHA256SUMS").write_text(f"{hashlib.sha256(b'other').hexdigest()}  a.run\n")
    code, _, err = run(released, capsys)
    assert code == 2 and "signature verification failed: install nothing of it" in err


def test_file_sums_and_signature_by_another_key_are_refused(released: Path, capsys: Any) -> None:
    sign(released, KeyPair.generate())
    code, _, err = run(released, capsys)
    assert code == 2 and "incompatible key identifiers" in err


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.minisig", "release.pub", "a.run"])
def test_what_is_missing_is_named(released: Path, capsys: Any, name: str) -> None:
    (released / name).unlink()
    code, out, err = run(released, capsys)
    assert (code, out) == (2, "") and name in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["SHA256SUMS.minisig", "release.pub"])
def test_rubbish_is_no_key_and_no_signature(released: Path, capsys: Any, name: str) -> None:
    (released / name).write_bytes(b"\xff\n\n")
    code, out, err = run(released, capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign is not installed")
def test_what_minisign_signs_is_ok(released: Path, capsys: Any) -> None:
    for words in (
        ["-G", "-W", "-f", "-p", "release.pub", "-s", "release.key"],
        ["-S", "-m", "SHA256SUMS", "-s", "release.key", "-t", "release of a"],
    ):
        subprocess.run(["minisign", *words], cwd=released, capture_output=True, check=True)
    assert run(released, capsys)[:2] == (0, f"{released / 'a.run'}: ok, release of a\n")
