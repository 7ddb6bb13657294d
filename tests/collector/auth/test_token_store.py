"""Every decision about tokens: who is admitted, and how tokens come and go."""

import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpuwarden.access import Denied, Scope, Token
from gpuwarden_collector.auth.scopes import Holder
from gpuwarden_collector.auth.token_store import Granted, TokenEntry, TokenStore, TokenStoreError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)

LESSER = {
    (Scope.EDIT, Scope.READ),
    (Scope.OPERATE, Scope.READ),
    (Scope.OPERATE, Scope.EDIT),
}


def made(scope: Scope, **more) -> tuple[Token, TokenEntry]:
    token = Token.new(scope)
    return token, TokenEntry(token.id, scope, token.digest, NOW, **more)


def test_a_token_is_valid_until_it_expires() -> None:
    token, entry = made(Scope.READ, expires_at=NOW + HOUR)
    book = TokenStore([entry])
    assert book.judged(token.text, Scope.READ, NOW + HOUR - timedelta(seconds=1)) == Granted(entry)
    denied = book.judged(token.text, Scope.READ, NOW + HOUR)
    assert isinstance(denied, Denied)
    assert (denied.why, denied.status) == ("expired", 401)
    assert "expired at 2026-03-01 13:00 UTC" in denied.reason


@pytest.mark.parametrize("need", [*Scope, Holder])
@pytest.mark.parametrize("held", Scope)
def test_a_scope_is_enough_for_itself_edit_for_read_and_admin_for_all(
    held: Scope, need: Scope
) -> None:
    token, entry = made(held)
    verdict = TokenStore([entry]).judged(token.text, need, NOW)
    if need is Holder or held in (need, Scope.ADMIN) or (held, need) in LESSER:
        assert verdict == Granted(entry)
    else:
        assert isinstance(verdict, Denied)
        assert (verdict.why, verdict.status) == ("scope", 403)


def test_denials_name_a_remedy_and_repeat_no_secret() -> None:
    token, _ = made(Scope.INGEST)
    other = Token.new(Scope.INGEST)
    forged = f"gw_ingest_{token.id}_{other.text.rpartition('_')[2]}"
    book = TokenStore([made(Scope.INGEST)[1]]).with_entry(made(Scope.READ)[1])
    book = book.with_entry(TokenEntry(token.id, Scope.INGEST, token.digest, NOW))
    for presented, why in (
        (None, "missing"),
        ("", "malformed"),
        ("Bearer", "malformed"),
        (other.text, "unknown"),
        (forged, "unknown"),
    ):
        denied = book.judged(presented, Scope.INGEST, NOW)
        assert isinstance(denied, Denied)
        assert denied.why == why
        assert "gpuwarden enroll" in denied.reason
        for secret in (token.text, other.text):
            assert secret.rpartition("_")[2] not in denied.reason


def test_secrets_are_compared_in_constant_time_also_without_an_entry(monkeypatch) -> None:
    compared = []

    def watched(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", watched)
    token, entry = made(Scope.READ)
    TokenStore([entry]).judged(token.text, Scope.READ, NOW)
    TokenStore().judged(token.text, Scope.READ, NOW)
    assert compared == [(64, 64), (64, 64)]


def test_a_rotated_token_has_the_old_scope_and_the_old_one_its_grace() -> None:
    old, entry = made(Scope.INGEST, node="n1", comment="rack 4")
    fresh = Token.new(Scope.INGEST)
    book = TokenStore([entry]).rotated(old.id, fresh, NOW, HOUR)
    verdict = book.judged(fresh.text, Scope.INGEST, NOW)
    assert isinstance(verdict, Granted)
    assert (verdict.entry.node, verdict.entry.comment) == ("n1", "rack 4")
    assert isinstance(book.judged(old.text, Scope.INGEST, NOW), Granted)
    assert isinstance(book.judged(old.text, Scope.INGEST, NOW + HOUR), Denied)


def test_the_sender_is_the_node_or_else_the_first_token_before_rotation() -> None:
    _, bound = made(Scope.INGEST, node="n1")
    _, again = made(Scope.INGEST, node="n1")
    assert bound.sender == again.sender == "node:n1"
    book = TokenStore([bound, first := made(Scope.INGEST)[1], other := made(Scope.INGEST)[1]])
    name = first.id
    for _ in range(3):
        fresh = Token.new(Scope.INGEST)
        book = book.rotated(name, fresh, NOW, HOUR)
        name = fresh.id
        assert (found := book.get(name)) and found.sender == first.sender
    assert first.sender != other.sender
    renewed = Token.new(Scope.INGEST)
    entry = book.rotated(bound.id, renewed, NOW, HOUR).get(renewed.id)
    assert entry and (entry.sender, entry.line) == ("node:n1", None)


def test_a_grace_does_not_lengthen_a_life() -> None:
    old, entry = made(Scope.READ, expires_at=NOW + HOUR)
    book = TokenStore([entry]).rotated(old.id, Token.new(Scope.READ), NOW, 10 * HOUR)
    assert isinstance(book.judged(old.text, Scope.READ, NOW + HOUR), Denied)


def test_revoking_an_unknown_token_revokes_none() -> None:
    token, entry = made(Scope.READ)
    with pytest.raises(TokenStoreError, match="there is no token nope"):
        TokenStore([entry]).revoked([token.id, "nope"])
    assert TokenStore([entry]).revoked([token.id]).entries == []


def test_the_same_enrolment_once_more_changes_nothing_even_when_it_is_used_up() -> None:
    by, entry = made(Scope.ENROLL, uses_left=1)
    own = Token.new(Scope.INGEST)
    book, first = TokenStore([entry]).enrolled(by.id, "n1", own.id, own.digest, NOW)
    again, second = book.enrolled(by.id, "n1", own.id, own.digest, NOW)
    assert again is book and second == first
    assert isinstance(book.judged(own.text, Scope.INGEST, NOW), Granted)


def test_an_enrolled_node_cannot_be_taken_over_with_another_enrolment() -> None:
    by, entry = made(Scope.ENROLL, uses_left=5)
    own, other = Token.new(Scope.INGEST), Token.new(Scope.INGEST)
    book, _ = TokenStore([entry]).enrolled(by.id, "n1", own.id, own.digest, NOW)
    with pytest.raises(TokenStoreError, match=f"node n1 has the token {own.id}: .*revoke"):
        book.enrolled(by.id, "n1", other.id, other.digest, NOW)
    with pytest.raises(TokenStoreError, match="a token"):
        book.enrolled(by.id, "n2", own.id, other.digest, NOW)
    held = book.get(own.id)
    assert held is not None
    ending = book.with_entry(structs.replace(held, expires_at=NOW + timedelta(days=1)))
    with pytest.raises(TokenStoreError, match="node n1 has the token"):
        ending.enrolled(by.id, "n1", other.id, other.digest, NOW)
    ending.enrolled(by.id, "n1", other.id, other.digest, NOW + timedelta(days=1))
    freed, _ = book.revoked([own.id]).enrolled(by.id, "n1", other.id, other.digest, NOW)
    assert freed.get(by.id).uses_left == 3


def test_a_name_that_differs_in_case_from_that_of_a_token_cannot_be_enrolled() -> None:
    by, entry = made(Scope.ENROLL, uses_left=5)
    own, other = Token.new(Scope.INGEST), Token.new(Scope.INGEST)
    book, _ = TokenStore([entry]).enrolled(by.id, "v1", own.id, own.digest, NOW)
    with pytest.raises(TokenStoreError, match="V1 differs from the node v1 in case alone"):
        book.enrolled(by.id, "V1", other.id, other.digest, NOW)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=20),
)
def test_an_enrolment_enrolls_at_most_its_number_of_nodes(uses: int, tries: list) -> None:
    """Whatever is tried, and tried again: never more nodes than uses, one token a node."""
    by, entry = made(Scope.ENROLL, uses_left=uses)
    tokens = {(n, k): Token.new(Scope.INGEST) for n in range(6) for k in range(3)}
    book = TokenStore([entry])
    for node, attempt in tries:
        token = tokens[node, attempt]
        try:
            book, _ = book.enrolled(by.id, f"n{node}", token.id, token.digest, NOW)
        except TokenStoreError:
            continue
        assert isinstance(book.judged(token.text, Scope.INGEST, NOW), Granted)
    nodes = [e.node for e in book.entries if e.scope is Scope.INGEST]
    assert len(nodes) == len(set(nodes)) == uses - book.get(by.id).uses_left <= uses


def test_tokens_that_expired_long_ago_are_removed() -> None:
    old, entry = made(Scope.READ, expires_at=NOW)
    book = TokenStore([entry, made(Scope.READ)[1]])
    assert book.without_old(NOW + HOUR, 2 * HOUR).get(old.id) == entry
    assert book.without_old(NOW + 2 * HOUR, 2 * HOUR).get(old.id) is None
