"""Writes what people and programs do to table `audit`, before the answer is sent.

Each endpoint that changes something is audited (`ACTIONS`), and one that is not listed is, under its method and path.
Requests without a valid token are counted by the gate instead: anybody could send any number of them.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
from aiohttp import web

from gpuwarden.access import CALLBACK_PATH, ENROLL_PATH, LOGIN_PATH, LOGOUT_PATH, Scope
from gpuwarden.audit import AUDIT, DETAILS_CHARACTERS_MAX
from gpuwarden.clock import Clock
from gpuwarden.gpu_test import GPU_TESTS_PATH
from gpuwarden.logs import masked
from gpuwarden.wire import INGEST_PATH
from gpuwarden_collector.auth.gate import GRANT, REFUSED
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.ingest.writer import WRITE_ERRORS, Writer
from gpuwarden_collector.storage.commit import Changes, naive
from gpuwarden_collector.storage.schemas import arrow_schema

log = logging.getLogger(__name__)

ACTIONS: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/silences"): "silence",
    ("DELETE", "/v1/silences/{id}"): "end_silence",
    ("POST", "/v1/rules/reload"): "reload_rules",
    ("DELETE", "/v1/nodes/{node}"): "forget_node",
    ("POST", "/v1/annotations"): "annotate",
    ("DELETE", "/v1/annotations/{id}"): "delete_annotation",
    ("POST", "/v1/queries"): "save_query",
    ("DELETE", "/v1/queries/{name}"): "delete_query",
    ("POST", "/v1/policies/stop"): "stop_policies",
    ("POST", "/v1/policies/start"): "start_policies",
    ("POST", "/v1/policies/{name}/seen"): "see_policy",
    ("POST", "/v1/nodes/{node}/resume"): "resume_node",
    ("POST", "/v1/acts/{id}"): "report_act",
    ("POST", "/answer/{secret}"): "answer",
    ("POST", "/v1/backtests"): "backtest",
    ("DELETE", "/v1/backtests/{id}"): "stop_backtest",
    ("POST", ENROLL_PATH): "enroll",
    ("POST", LOGIN_PATH): "log_in",
    ("POST", LOGOUT_PATH): "log_out",
    ("GET", CALLBACK_PATH): "sign_in",
    ("GET", "/v1/money.csv"): "export_money",
    ("GET", "/money/report"): "export_report",
}
"""Names of actions by method and path."""
NOT_AUDITED = frozenset(
    {
        ("POST", INGEST_PATH),
        ("POST", "/prometheus/api/v1/write"),
        ("POST", "/otlp/v1/metrics"),
        ("POST", GPU_TESTS_PATH),
        ("PUT", "/v1/copies/{collector}/{segment}"),
        # They only read; SQL is in query_log.
        ("POST", "/v1/sql"),
        ("POST", "/mcp"),
        ("POST", "/prometheus/api/v1/query"),
        ("POST", "/prometheus/api/v1/query_range"),
        ("POST", "/prometheus/api/v1/series"),
        ("POST", "/prometheus/api/v1/labels"),
        ("POST", "/prometheus/api/v1/query_exemplars"),
    }
)
_WITH_ANSWER = frozenset({"silence", "end_silence", "annotate", "enroll", "reload_rules", "save_query", "backtest", "report_act"})  # fmt: skip
"""Actions whose answer says what was made, without secrets."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
A_MINUTE_MAX = 120
"""Actions of a token of scope read, or refused ones, that are written each minute; further ones are counted."""
_SCHEMA = arrow_schema(AUDIT.columns)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AuditNote(NamedTuple):
    """An action."""

    action: str
    outcome: str
    target: str | None = None
    status: int | None = None
    details: str | None = None
    entry: TokenEntry | None = None
    address: str | None = None


def action_of(method: str, path: str) -> str | None:
    """The name of what a request does; `path`: of its route. None: nothing that is audited."""
    if (method, path) in ACTIONS:
        return ACTIONS[method, path]
    return None if method in _SAFE or (method, path) in NOT_AUDITED else f"{method} {path}"


def token_notes(before: Sequence[TokenEntry], after: Sequence[TokenEntry]) -> list[AuditNote]:
    """What a change of the file of tokens did."""
    old, new = ({entry.id: entry for entry in entries} for entries in (before, after))
    made = [
        AuditNote("token_created", "done", e.id, details=_of(e)) for e in after if e.id not in old
    ]
    gone = [
        AuditNote("token_removed", "done", e.id, details=_of(e)) for e in before if e.id not in new
    ]
    changed = [
        AuditNote("token_changed", "done", e.id, details=_of(e))
        for e in after
        if e.id in old and (old[e.id].expires_at, old[e.id].team) != (e.expires_at, e.team)
    ]
    return [*made, *gone, *changed]


def _of(entry: TokenEntry) -> str:
    named = {
        "scope": entry.scope,
        "node": entry.node,
        "team": entry.team,
        "comment": entry.comment or None,
    }
    if entry.expires_at is not None:
        named["expires_at"] = f"{entry.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    return ", ".join(f"{name} {value}" for name, value in named.items() if value)


class Audit:
    """Writes notes. One event loop uses it."""

    def __init__(self, collector: str, writer: Writer, clock: Clock) -> None:
        self._collector = collector
        self._writer = writer
        self._clock = clock
        self._numbers = itertools.count(1)
        self._minute = 0
        self._written: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._waiting: list[AuditNote] = []

    def later(self, notes: Sequence[AuditNote]) -> None:
        """Write notes at the next `flush`."""
        self._waiting += notes

    async def note_own(self, notes: Sequence[tuple[str, str, str]]) -> bool:
        """Write actions of the collector itself: name, target, details. Whether they are on disk."""
        return await self._write([AuditNote(a, "done", t, details=d or None) for a, t, d in notes])

    async def flush(self) -> None:
        """Write waiting notes, and what was not written one by one in past minutes."""
        self._begin_minute()
        waiting, self._waiting = self._waiting, []
        await self._write(waiting)

    async def note(self, note: AuditNote) -> None:
        """Write a note now. If the store takes no rows, the log gets it as an error."""
        self._begin_minute()
        entry = note.entry
        is_bounded = note.outcome == "refused" or entry is None or entry.scope is Scope.READ
        who = entry.first_id if entry is not None else note.address or ""
        if is_bounded:
            self._written[who] += 1
            if self._written[who] > A_MINUTE_MAX:
                self._dropped[entry.name if entry is not None else who] += 1
                return
        await self._write([note])

    def _begin_minute(self) -> None:
        minute = int(self._clock.monotonic() // 60)
        if minute == self._minute:
            return
        self._minute, self._written = minute, Counter()
        for who, actions in self._dropped.items():
            self._waiting.append(
                AuditNote("actions_not_listed", "done", who, details=f"{actions} more in a minute")
            )
        self._dropped = Counter()

    async def _write(self, notes: Sequence[AuditNote]) -> bool:
        if not notes:
            return True
        now = self._clock.now()
        rows = [self._row(note, now) for note in notes]
        table = pa.Table.from_pylist(rows, _SCHEMA)
        try:
            await self._writer.write(Changes(appended={AUDIT.name: table}))
        except WRITE_ERRORS as error:
            for row in rows:
                log.error(
                    "an action is not in the audit",
                    extra={"action": str(row), "reason": str(error)},
                )
            return False
        return True

    def _row(self, note: AuditNote, now: datetime) -> dict[str, Any]:
        entry = note.entry
        return {
            "ts": naive(now),
            "collector": self._collector,
            "number": next(self._numbers),
            "username": None if entry is None else entry.name,
            "token": None if entry is None else entry.first_id,
            "scope": None if entry is None else str(entry.scope),
            "address": note.address,
            "action": note.action,
            "target": note.target,
            "outcome": note.outcome,
            "status": note.status,
            "details": None if note.details is None else note.details[:DETAILS_CHARACTERS_MAX],
        }

    @property
    def middleware(self) -> Any:
        """The middleware for aiohttp, outside of the gate's."""

        @web.middleware
        async def audited(request: web.Request, handler: Handler) -> web.StreamResponse:
            resource = request.match_info.route.resource
            action = None if resource is None else action_of(request.method, resource.canonical)
            if action is None:
                return await handler(request)
            try:
                answer = await handler(request)
            except Exception:
                await self.note(_note(request, action, 500, None))
                raise
            if _is_known(request, action):
                await self.note(_note(request, action, answer.status, answer))
            return answer

        return audited


def _is_known(request: web.Request, action: str) -> bool:
    """Whether a request has an identity, or needed none. A refused log-in redirects to the page with the reason."""
    if action in ("log_in", "sign_in"):
        return GRANT in request
    return request.get(REFUSED) is not None or REFUSED not in request


def _note(
    request: web.Request, action: str, status: int, answer: web.StreamResponse | None
) -> AuditNote:
    grant = request.get(GRANT)
    outcome = "done" if status < 400 else "refused" if status < 500 else "failed"
    details = None
    if isinstance(answer, web.Response) and (action in _WITH_ANSWER or status >= 400):
        details = answer.text
    target = ", ".join(request.match_info.values()) or masked(
        f"?{request.query_string[:200]}"
    ).removeprefix("?")
    entry = request.get(REFUSED) if grant is None else grant.entry
    shown = None if action in ("sign_in", "answer") else target or None
    return AuditNote(action, outcome, shown, status, details, entry, request.remote)
