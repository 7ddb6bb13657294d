"""Tokens have one form, show their secret nowhere, and allow what they say."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.access import Scope, Token, allows, read_token


@pytest.mark.parametrize("scope", Scope)
def test_a_token_is_read_as_it_was_made(scope: Scope) -> None:
    token = Token.new(scope)
    assert re.fullmatch(rf"gw_{scope}_[a-z0-9]{{12}}_[A-Za-z0-9]{{43}}", token.text)
    assert Token.parse(token.text) == token
    assert token.digest != Token.new(scope).digest


def test_its_representation_shows_no_secret() -> None:
    token = Token.new(Scope.READ)
    assert token.text.rpartition("_")[2] not in f"{token} {token!r}"


@settings(max_examples=40)
@given(
    st.text()
    | st.from_regex(r"gw_(ingest|root)_[a-z0-9]{11,12}_[A-Za-z0-9]{42,44}", fullmatch=True)
)
def test_what_is_no_token_is_refused_without_being_repeated(text: str) -> None:
    try:
        assert Token.parse(text).text == text
    except ValueError as error:
        assert len(text) < 12 or text not in str(error)


def test_a_line_behind_a_token_makes_it_none() -> None:
    with pytest.raises(ValueError, match="not a gpuwarden token"):
        Token.parse(Token.new(Scope.READ).text + "\n")


def test_a_file_holds_one_token(tmp_path: Path) -> None:
    token, path = Token.new(Scope.INGEST), tmp_path / "token"
    path.write_text(f"  {token.text}\n")
    assert read_token(path) == token


@pytest.mark.parametrize("content", [b"", b"hunter2", "gw_ingest_ü".encode(), b"\xff\xfe"])
def test_a_file_without_one_is_named_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: this is not a gpuwarden token") as caught:
        read_token(path)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none: the token cannot be read: No such file"):
        read_token(tmp_path / "none")


def test_only_admin_operate_and_edit_allow_what_another_scope_does() -> None:
    granted = {(held, need) for held in Scope for need in Scope if allows(held, need)}
    assert granted == {(s, s) for s in Scope} | {(Scope.ADMIN, s) for s in Scope} | {
        (Scope.EDIT, Scope.READ),
        (Scope.OPERATE, Scope.READ),
        (Scope.OPERATE, Scope.EDIT),
    }
