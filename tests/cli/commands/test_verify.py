"""Nothing that was changed after it was signed passes for a release."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.minisign import PublicKey, SignatureError, public_key, sign, verify
from gpuwarden_cli.main import main

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A folder with a file, signed sums, and the key that was there before."""
    (tmp_path / "a.run").write_bytes(b"content")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'content').hexdigest()}  a.run\n")
    (tmp_path / "SHA256SUMS.minisig").write_text(
        sign(KEY, (tmp_path / "SHA256SUMS").read_bytes(), "release of a")
    )
    (tmp_path / "release.pub").write_text(public_key(KEY).text)
    return tmp_path


def run(released: Path, capsys: Any, *more: str) -> tuple[int, str, str]:
    words = ["verify", str(released / "a.run"), "--key", str(released / "release.pub"), *more]
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_what_was_signed_is_ok(released: Path, capsys: Any) -> None:
    code, out, _ = run(released, capsys)
    assert (code, out) == (0, f"{released / 'a.run'}: ok, release of a\n")
    line = public_key(KEY).text.splitlines()[1]
    assert main(["verify", str(released / "a.run"), "--key", line]) == 0


def test_a_changed_file_is_refused(released: Path, capsys: Any) -> None:
    (released / "a.run").write_bytes(b"content!")
    code, out, err = run(released, capsys)
    assert (code, out) == (2, "") and "is not what was signed: do not install it" in err


def test_changed_file_and_sums_are_refused(released: Path, capsys: Any) -> None:
    (released / "a.run").write_bytes(b"other")
    (released / "SHA256SUMS").write_text(f"{hashlib.sha256(b'other').hexdigest()}  a.run\n")
    code, _, err = run(released, capsys)
    assert code == 2 and "it was changed after it was signed" in err


def test_file_sums_and_signature_by_another_key_are_refused(released: Path, capsys: Any) -> None:
    other = Ed25519PrivateKey.generate()
    text = sign(other, (released / "SHA256SUMS").read_bytes(), "release of a")
    (released / "SHA256SUMS.minisig").write_text(text)
    code, _, err = run(released, capsys)
    assert code == 2 and "it is signed by another key" in err


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.minisig", "release.pub", "a.run"])
def test_what_is_missing_is_named(released: Path, capsys: Any, name: str) -> None:
    (released / name).unlink()
    code, out, err = run(released, capsys)
    assert (code, out) == (2, "") and name in err and err.count("\n") == 1


@given(st.binary(max_size=50), st.integers(0, 400), st.integers(1, 255))
def test_no_byte_of_a_signature_can_be_changed(content: bytes, at: int, by: int) -> None:
    key, text = public_key(KEY), sign(KEY, content, "release")
    assert verify(key, text, content) == "release"
    lines = text.split("\n")
    for number in (1, 3):
        raw = bytearray(base64.b64decode(lines[number]))
        raw[at % len(raw)] ^= by
        changed = [*lines]
        changed[number] = base64.b64encode(raw).decode()
        with pytest.raises(SignatureError):
            verify(key, "\n".join(changed), content)
    with pytest.raises(SignatureError):
        verify(key, text.replace("trusted comment: release", "trusted comment: other"), content)


@given(st.text(max_size=300))
def test_rubbish_is_no_key_and_no_signature(text: str) -> None:
    with pytest.raises(SignatureError):
        PublicKey.parse(text)
    with pytest.raises(SignatureError):
        verify(public_key(KEY), text, b"")
