"""Holds the tokens of a collector and decides which are valid; pure.

It has the SHA-256 of each token and its SCRAM-SHA-256 verifier, never the token.
"""

import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from gpuwarden.access import Denied, Scope, Token, allows
from gpuwarden.node_name import twin_of
from gpuwarden.scram import Verifier
from gpuwarden.teams import Team
from gpuwarden_collector.auth.scopes import Holder, Need
from gpuwarden_collector.auth.senders import node_sender, token_sender

SESSIONS_MAX = 10
"""Sessions that a person may have at a time: browsers."""
_NO_DIGEST = "0" * 64


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One token."""

    id: str
    scope: Scope
    sha256: str
    created_at: datetime
    node: str | None = None
    """The only node whose rows it may send; None: any."""
    expires_at: datetime | None = None
    uses_left: int | None = None
    """For enrolment: number of nodes that it can still enroll; None: any number."""
    comment: str = ""
    line: str | None = None
    """Id of the first token from which rotation made this one; None: it is the first."""
    team: str | None = None
    """Team of `access_file` whose rows it may see; None: all rows."""
    person: str | None = None
    """Id of the person who has signed in; None: a token that was made by a command."""
    scram: str | None = None
    """SCRAM-SHA-256 verifier for PostgreSQL's clients; None: they send the token itself."""
    known_nodes: bool = False
    """For enrolment: whether it also enrolls nodes that have rows and no token."""

    @property
    def name(self) -> str:
        """Its name in lists: comment or id."""
        return self.comment or self.id

    @property
    def user(self) -> str:
        """Its user in the queue of queries; rotation does not change it."""
        return f"token {self.first_id}"

    @property
    def first_id(self) -> str:
        """The id of the token that it was before any rotation."""
        return self.line or self.id

    @property
    def sender(self) -> str:
        """Its sender in the ledger; rotation, or another token of the same node, does not change it."""
        return token_sender(self.first_id) if self.node is None else node_sender(self.node)

    def is_over(self, now: datetime) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class Granted:
    """The request is allowed."""

    entry: TokenEntry
    team: Team | None = None
    """The team of the entry."""


class TokenStoreError(ValueError):
    """The change cannot be made; one line for people."""


class TokenStore:
    """Tokens by id. A change returns a new store."""

    def __init__(self, entries: Sequence[TokenEntry] = ()) -> None:
        self._entries = {entry.id: entry for entry in entries}

    @property
    def entries(self) -> list[TokenEntry]:
        """All tokens, the oldest first."""
        return list(self._entries.values())

    def get(self, name: str) -> TokenEntry | None:
        """The token with this id; None: there is none."""
        return self._entries.get(name)

    def judged(self, presented: str | None, need: Need, now: datetime) -> Granted | Denied:
        """Whether the token `presented` is valid and has the scope `need`."""
        if presented is None:
            scope = "" if need is Holder else f" with scope {need}"
            return Denied("missing", f"this needs a token{scope}; {_remedy(need)}")
        try:
            token = Token.parse(presented)
        except ValueError:
            return Denied("malformed", f"this is not a gpuwarden token; {_remedy(need)}")
        entry = self._entries.get(token.id)
        # Compare in constant time, also if there is no such token.
        is_it = hmac.compare_digest(entry.sha256 if entry else _NO_DIGEST, token.digest)
        return self.judged_entry(token.id, need, now, is_it=is_it)

    def judged_entry(
        self, name: str, need: Need, now: datetime, *, is_it: bool
    ) -> Granted | Denied:
        """As `judged`, for a token by its id; `is_it`: the client has proved that it has the token."""
        entry = self._entries.get(name)
        if entry is None or not is_it:
            what = f"the token {name} is unknown or revoked"
            return Denied("unknown", f"{what}; {_remedy(need)}")
        if entry.is_over(now):
            over = f"the token {entry.id} expired at {entry.expires_at:%Y-%m-%d %H:%M} UTC"
            return Denied("expired", f"{over}; {_remedy(need)}")
        if isinstance(need, Scope) and not allows(entry.scope, need):
            has = f"the token {entry.id} has scope {entry.scope}, and this needs {need}"
            return Denied("scope", f"{has}; {_remedy(need)}", 403)
        return Granted(entry)

    def with_entry(self, entry: TokenEntry) -> "TokenStore":
        """Add or replace a token."""
        return TokenStore([*(e for e in self._entries.values() if e.id != entry.id), entry])

    def ingest_token(self, node: str, now: datetime) -> TokenEntry | None:
        """A valid ingest token of a node; None: there is none."""
        for entry in self._entries.values():
            is_its = entry.scope is Scope.INGEST and entry.node == node
            if is_its and not entry.is_over(now):
                return entry
        return None

    def revoked(self, names: Sequence[str]) -> "TokenStore":
        """Remove the tokens with these ids. Raises TokenStoreError for an unknown id."""
        for name in names:
            self._known(name)
        return TokenStore([e for e in self._entries.values() if e.id not in names])

    def rotated(self, name: str, fresh: Token, now: datetime, grace: timedelta) -> "TokenStore":
        """Replace the token `name` by `fresh`; the old one stays valid for `grace`. Raises TokenStoreError."""
        old = self._known(name)
        if old.scope is Scope.ENROLL:
            raise TokenStoreError(f"the token {name} is for enrolment; create a new one instead")
        ends_at = min(now + grace, old.expires_at or now + grace)
        line = None if old.node is not None else old.first_id
        new = msgspec.structs.replace(
            old, id=fresh.id, sha256=fresh.digest, created_at=now, line=line, scram=scram_of(fresh)
        )
        return self.with_entry(msgspec.structs.replace(old, expires_at=ends_at)).with_entry(new)

    def enrolled(
        self,
        by: str,
        node: str,
        name: str,
        digest: str,
        now: datetime,
        stored: Collection[str] = (),
    ) -> "tuple[TokenStore, TokenEntry]":
        """Add a node's own token, with the enrolment token `by`; `stored`: nodes that have rows.

        A repeated request changes nothing: the first answer may have been lost. Raises TokenStoreError.
        """
        old = self._entries.get(name)
        if old is not None:
            if (old.sha256, old.node, old.scope) == (digest, node, Scope.INGEST):
                return self, old
            raise TokenStoreError(f"a token {name} already exists: enroll again")
        pass_ = self._known(by)
        if pass_.uses_left == 0:
            raise TokenStoreError(
                f"the enrolment token {by} is used up: `gpuwarden token enrolment` creates another one"
            )
        if (held := self.ingest_token(node, now)) is not None:
            raise TokenStoreError(
                f"node {node} has the token {held.id}: to give it another one, first run"
                f" `gpuwarden token revoke {held.id}` on the collector's host"
            )
        of_tokens = [entry.node for entry in self._entries.values() if entry.node is not None]
        if (twin := twin_of(node, [*of_tokens, *stored])) is not None:
            raise TokenStoreError(
                f"{node} differs from the node {twin} in case alone: enroll it as {twin}"
            )
        if node in stored and not pass_.known_nodes:
            raise TokenStoreError(
                f"node {node} has rows already, and the enrolment token {by} is for new nodes:"
                " `gpuwarden token enrolment --known-nodes` creates one for such nodes too"
            )
        store = self
        if pass_.uses_left is not None:
            spent = msgspec.structs.replace(pass_, uses_left=pass_.uses_left - 1)
            store = store.with_entry(spent)
        entry = TokenEntry(name, Scope.INGEST, digest, now, node, comment=f"enrolled by {by}")
        return store.with_entry(entry), entry

    def signed_in(self, entry: TokenEntry, now: datetime) -> "TokenStore":
        """Add the session of a person, without sessions that are over, and the oldest beyond SESSIONS_MAX of one
        person."""
        kept = [e for e in self._entries.values() if e.person is None or not e.is_over(now)]
        own = [e for e in kept if e.person == entry.person]
        dropped = {e.id for e in own[: max(0, len(own) - SESSIONS_MAX + 1)]}
        return TokenStore([*(e for e in kept if e.id not in dropped), entry])

    def signed_out(self, person: str, session: str | None = None) -> "TokenStore":
        """Remove one session of a person, or all."""
        return TokenStore(
            [
                e
                for e in self._entries.values()
                if e.person != person or (session is not None and e.id != session)
            ]
        )

    def sessions_of(self, name: str) -> list[TokenEntry]:
        """Sessions of the people of that name."""
        return [e for e in self._entries.values() if e.person is not None and e.comment == name]

    def without_old(self, now: datetime, kept: timedelta) -> "TokenStore":
        """Remove tokens that expired at least `kept` ago."""
        return TokenStore([e for e in self._entries.values() if not e.is_over(now - kept)])

    def _known(self, name: str) -> TokenEntry:
        entry = self._entries.get(name)
        if entry is None:
            raise TokenStoreError(f"there is no token {name}: `gpuwarden token list` shows all")
        return entry


def scram_of(token: Token) -> str | None:
    """The verifier for PostgreSQL's clients; None: the token does not allow queries."""
    return str(Verifier.of(token.text)) if allows(token.scope, Scope.READ) else None


def _remedy(need: Need) -> str:
    hint = f"`gpuwarden token create --scope {Scope.READ if need is Holder else need}`"
    if need is Scope.INGEST:
        hint = "`gpuwarden enroll`, or `gpuwarden token create --scope ingest --node NAME`"
    if need is Scope.ENROLL:
        hint = "`gpuwarden token enrolment` on the collector's host"
    return f"get one: {hint} (docs/security.md)"
