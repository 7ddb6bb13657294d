"""The file of tokens: whole, private, never two changes that undo each other, never a secret."""

import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwarden.access import Scope, Token
from gpuwarden_collector.auth.token_file import (
    TokenFileError,
    edit,
    last_used,
    load,
    write_last_used,
)
from gpuwarden_collector.auth.token_store import TokenEntry, TokenStore, TokenStoreError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def add(path: Path, **more) -> Token:
    token = Token.new(Scope.READ)
    entry = TokenEntry(token.id, Scope.READ, token.digest, NOW, **more)
    edit(path, lambda book: (book.with_entry(entry), None))
    return token


def test_tokens_are_read_as_written_without_their_secrets(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    assert load(path).entries == []
    token = add(path, node="n1", expires_at=NOW, uses_left=3, comment="ü")
    [entry] = load(path).entries
    assert entry == TokenEntry(token.id, Scope.READ, token.digest, NOW, "n1", NOW, 3, "ü")
    assert token.text.rpartition("_")[2] not in path.read_text()
    assert {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {
        "tokens.json": 0o600,
        ".tokens.json.lock": 0o600,
    }


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    threads = [threading.Thread(target=lambda: [add(path) for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load(path).entries) == 40


def test_a_change_that_fails_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    add(path)
    before = path.read_bytes()

    def fail(_book: TokenStore) -> tuple[TokenStore, None]:
        raise TokenStoreError("no")

    with pytest.raises(TokenStoreError):
        edit(path, fail)
    assert path.read_bytes() == before
    add(path)  # the lock was let go


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "this is not a file of tokens"),
        (b"\xff", "this is not a file of tokens"),
        (b"[]", "this is not a file of tokens"),
        (b'{"version": 1, "tokens": [{"id": 5}]}', "this is not a file of tokens .*tokens\\[0\\]"),
        (b'{"version": 2, "tokens": []}', "version 2; this gpuwarden knows 1"),
        (
            json.dumps(
                {
                    "version": 1,
                    "tokens": [
                        {
                            "id": "a",
                            "scope": "read",
                            "sha256": "b",
                            "created_at": "2026-01-01T00:00:00",
                        }
                    ],
                }
            ).encode(),
            "a time in it has no time zone",
        ),
    ],
)
def test_a_damaged_file_is_named_and_never_overwritten(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    with pytest.raises(TokenFileError, match=f"^{path}: {says}"):
        load(path)
    with pytest.raises(TokenFileError):
        add(path)
    assert path.read_bytes() == content


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenFileError, match="no is missing: start the collector once"):
        add(tmp_path / "no" / "tokens.json")


def test_the_last_uses_are_in_a_second_file_that_may_be_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.json"
    assert last_used(path) == {}
    write_last_used(path, {"a": NOW})
    assert last_used(path) == {"a": NOW}
    (tmp_path / "tokens.json.used").write_text("{}}")
    assert last_used(path) == {}
