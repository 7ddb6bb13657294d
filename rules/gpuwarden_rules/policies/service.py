"""Follows the policies that are on: reads what fires, stores each step, and has messages sent. It acts nowhere itself.

Acts are fetched by the actor (`gpuwarden actor run`), a process with the scheduler's rights, and reported by it.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import Clock
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.definition.overrides import Locations
from gpuwarden_rules.evaluation.fleet import locations
from gpuwarden_rules.policies.case_store import CaseStore, CaseStoreError, PolicyNote
from gpuwarden_rules.policies.cases import (
    CaseState,
    LiveAlert,
    PolicyCase,
    advance,
    answered,
    case_id,
    digest_of,
    reported,
    resumed,
)
from gpuwarden_rules.policies.dry_run import subjects_of
from gpuwarden_rules.policies.language import Policy, PolicyState, StepKind
from gpuwarden_rules.policies.results import judged, record_of, results_of, to_judge

log = logging.getLogger(__name__)

STEP_S = 5.0
"""Interval of steps."""
PLACES_S = 60.0
"""How long the places of GPUs and nodes are kept: reading those of a large fleet takes longer than a step."""
SHOWN = timedelta(days=30)
"""Ended cases are listed for this long."""
JUDGE_S = 600.0
"""Interval of looks at what followed the acts."""
JUDGED_FOR = timedelta(days=8)
"""Acts that are older are not looked at after a long absence."""
LINK_LASTS = timedelta(days=15)
"""Longer than any wait of a policy."""


@dataclass(frozen=True, slots=True)
class OwnerWords:
    """A message to the owner of what a policy is about."""

    id: str
    """The same for the same step, so that it is sent once."""
    username: str
    title: str
    paragraphs: tuple[str, ...]


class Mailbox(Protocol):
    """Sends messages to owners."""

    def reaches(self, username: str) -> bool:
        """Whether the user has an address."""
        ...

    async def say(self, words: OwnerWords) -> None:
        """Have a message sent, once for its id; durable when this returns. Raises OSError."""
        ...


class PolicyRecords(Protocol):
    """Where what policies do is written for people, durably."""

    async def note(self, notes: Sequence[PolicyNote]) -> bool:
        """Write rows of the audit; whether they are on disk."""
        ...

    async def save_cases(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Insert or replace rows of `policy_cases`; whether they are on disk."""
        ...


class PolicyService:
    """Policies of one collector. `run` it; HTTP asks the others."""

    def __init__(
        self,
        policies: Sequence[Policy],
        store: CaseStore,
        alerts: Callable[[], Sequence[Alert] | None],
        querier: Querier,
        clock: Clock,
        mailbox: Mailbox,
        *,
        link: str | None,
        records: PolicyRecords,
    ) -> None:
        """`alerts`: those of the rules; None: not known yet. `link`: the collector's address for people; without it no
        owner can answer."""
        self.policies = list(policies)
        self._store = store
        self._alerts = alerts
        self._querier = querier
        self._clock = clock
        self._mailbox = mailbox
        self._link = None if link is None else link.rstrip("/")
        self._records = records
        self._unseen: frozenset[str] = frozenset()
        self._places: tuple[float, Locations] | None = None
        self._judged_s = -math.inf
        self._lock = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Take steps until `stop` is set."""
        while not stop.is_set():
            try:
                async with self._lock:
                    await self._step()
                    await self._judge()
                    await self._list()
            except (CaseStoreError, QueryError, OSError) as error:
                log.error("policies take no step", extra={"reason": str(error)})
            try:
                async with asyncio.timeout(STEP_S):
                    await stop.wait()
            except TimeoutError:
                pass
        self._store.close()

    async def _step(self) -> None:
        now, alerts = self._clock.now(), self._alerts()
        on = await asyncio.to_thread(self._on)
        is_stopped = await asyncio.to_thread(self._store.stopped) is not None
        if alerts is None or is_stopped:
            return
        rules = {policy.rule for policy in on}
        firing = [a for a in alerts if a.rule in rules and a.state is AlertState.FIRING]
        # An alert that still fires has its case, however long ago that ended.
        ids = [case_id(p.name, a) for p in on for a in firing if a.rule == p.rule]
        cases = await asyncio.to_thread(self._store.cases, now - timedelta(hours=1), ids)
        if firing or cases:
            live = await self._live(firing, now)
            users = {one.subject.username for one in live} | {
                case.username for case in cases.values()
            }
            reached = [
                username
                for username in users
                if username and self._link and self._mailbox.reaches(username)
            ]
            moves = advance(on, cases, live, now, may_ask=reached)
            if moves.changed or moves.said:
                to_say = {case.id: word for case, word in moves.said}
                changed = {case.id: case for case in (*moves.changed, *(c for c, _ in moves.said))}
                notes = [note for case in moves.changed for note in _notes(case)]
                await asyncio.to_thread(self._store.save, changed.values(), to_say, now, notes)
        for case, word in await asyncio.to_thread(self._store.unsaid):
            await self._say(case, word, now)
        await self._write_notes()

    async def _judge(self) -> None:
        """Look at what followed the acts, every JUDGE_S. Raises CaseStoreError, QueryError."""
        now_s, now = self._clock.monotonic(), self._clock.now()
        if now_s - self._judged_s < JUDGE_S:
            return
        self._judged_s = now_s
        cases = await asyncio.to_thread(self._store.cases, now - JUDGED_FOR)
        to_do = to_judge(cases, now)
        if to_do:
            found = await judged(to_do, self._querier, now)
            await asyncio.to_thread(self._store.save, found, {}, now)

    async def _list(self) -> None:
        """Hand changed cases to the table. A crash in between repeats them, and loses none. Raises CaseStoreError."""
        while cases := await asyncio.to_thread(self._store.unlisted):
            if not await self._records.save_cases([record_of(case) for case in cases]):
                return
            await asyncio.to_thread(self._store.were_listed, cases)

    async def _write_notes(self) -> None:
        """Hand rows to the audit. A crash in between repeats them, and loses none. Raises CaseStoreError."""
        last, notes = await asyncio.to_thread(self._store.notes)
        if notes and await self._records.note(notes):
            for note in notes:
                log.warning(
                    "policy",
                    extra={"action": note.action, "target": note.target, "note": note.details},
                )
            await asyncio.to_thread(self._store.forget_notes, last)

    def _on(self) -> list[Policy]:
        """Policies that are on, and whose dry run was read. Raises CaseStoreError."""
        wanted = [policy for policy in self.policies if policy.state is PolicyState.ON]
        seen = self._store.seen() if wanted else frozenset()
        unseen = frozenset(p.name for p in wanted if digest_of(p) not in seen)
        for name in sorted(unseen - self._unseen):
            remedy = f"gpuwarden policies backtest FILE --policy {name}"
            log.warning(
                "a policy is not on: nobody has read its dry run",
                extra={"policy": name, "remedy": remedy},
            )
        self._unseen = unseen
        return [policy for policy in wanted if policy.name not in unseen]

    async def _live(self, firing: Sequence[Alert], now: datetime) -> list[LiveAlert]:
        if not firing:
            return []
        now_s = self._clock.monotonic()
        if self._places is None or now_s - self._places[0] >= PLACES_S:
            self._places = now_s, await locations(self._querier)
        places = self._places[1]
        subjects = await subjects_of(self._querier, firing, places, [now] * len(firing))
        return [LiveAlert(*both) for both in zip(firing, subjects, strict=True)]

    async def _say(self, case: PolicyCase, word: StepKind, now: datetime) -> None:
        """Have a step's message sent; the case waits already."""
        said = "not said: the owner has no address"
        if self._mailbox.reaches(case.username):
            secret = await asyncio.to_thread(self._store.question, case, now + LINK_LASTS)
            link = None if self._link is None else f"{self._link}/answer/{secret}"
            await self._mailbox.say(words_of(case, word, link))
            said = f"said to {case.username}"
        await asyncio.to_thread(self._store.was_said, case.id, _note(case, word.value, said))

    async def acts(self) -> list[PolicyCase]:
        """What actors are to do; nothing while policies are stopped. Raises CaseStoreError."""
        if await asyncio.to_thread(self._store.stopped) is not None:
            return []
        cases = await asyncio.to_thread(self._store.cases, self._clock.now())
        return [case for case in cases.values() if case.state is CaseState.ACTING]

    async def report(self, name: str, *, is_done: bool, note: str) -> PolicyCase | None:
        """Take the actor's report of a case; None: nobody asked for it, or it was reported. Raises CaseStoreError."""
        async with self._lock:
            case, now = await asyncio.to_thread(self._store.case, name), self._clock.now()
            ended = None if case is None else reported(case, now, is_done=is_done, note=note)
            if ended is not None:
                await asyncio.to_thread(self._store.save, [ended], {}, now, _notes(ended))
                await self._write_notes()
            return ended

    async def resume(self, node: str, by: str) -> PolicyCase:
        """Ask the actor to return a node to the queue. Raises CaseStoreError."""
        async with self._lock:
            now = self._clock.now()
            case = resumed(node, by, now)
            note = _note(case, "act", case.summary)
            await asyncio.to_thread(self._store.save, [case], {}, now, [note])
            await self._write_notes()
            return case

    async def asked(self, secret: str) -> PolicyCase | None:
        """The case that an owner's link is about; None: unknown, used or expired. Raises CaseStoreError."""
        return await asyncio.to_thread(self._store.asked, secret, self._clock.now())

    async def answer(self, secret: str, until: datetime | None) -> PolicyCase | None:
        """Take an owner's answer: still needed `until`, or None: end it. None: the link serves no more.

        Raises CaseStoreError.
        """
        async with self._lock:
            now = self._clock.now()
            case = await asyncio.to_thread(self._store.asked, secret, now)
            found = None if case is None else answered(case, now, until=until)
            if found is None:
                return None
            note = _note(found, "answer", found.note)
            if not await asyncio.to_thread(self._store.answer, secret, found, now, note):
                return None
            await self._write_notes()
            return found

    async def see(self, name: str, digest: str) -> bool:
        """Note that the dry run of a policy was read; False: the policy has changed."""
        known = {policy.name: digest_of(policy) for policy in self.policies}
        if known.get(name) != digest:
            return False
        await asyncio.to_thread(self._store.see, digest, self._clock.now())
        return True

    async def results(self) -> list[dict[str, Any]]:
        """What each policy did, and what that saved. Raises QueryError."""
        return await results_of(self._querier)

    async def stop(self, by: str) -> None:
        """Let nothing be said or done until `start`. Raises CaseStoreError."""
        log.warning("policies are stopped", extra={"by": by})
        await asyncio.to_thread(self._store.stop, by, self._clock.now())

    async def start(self) -> None:
        """End `stop`. Raises CaseStoreError."""
        await asyncio.to_thread(self._store.start)

    async def document(self) -> dict[str, Any]:
        """Policies and cases, for people. Raises CaseStoreError."""
        now = self._clock.now()
        on = {policy.name for policy in await asyncio.to_thread(self._on)}
        stopped = await asyncio.to_thread(self._store.stopped)
        cases = await asyncio.to_thread(self._store.cases, now - SHOWN)
        return {
            "stopped": None if stopped is None else {"at": stopped[0], "by": stopped[1]},
            "policies": [
                {
                    "name": one.name, "state": one.state.value, "is_on": one.name in on, "rule": one.rule,
                    "act": one.act.value, "digest": digest_of(one), "file": one.path, "line": one.line,
                }
                for one in self.policies
            ],
            "cases": [
                {**asdict(case), "target": case.target}
                for case in sorted(cases.values(), key=lambda c: c.ended_at or now, reverse=True)
            ],
        }  # fmt: skip


def _note(case: PolicyCase, what: str, details: str) -> PolicyNote:
    return PolicyNote(
        f"policy_{what}", case.target, f"policy {case.policy}, case {case.id}: {details}"
    )


def _notes(case: PolicyCase) -> list[PolicyNote]:
    """The audit's row of a change: of acts that are asked for, and of ends."""
    if case.state is CaseState.ACTING:
        return [_note(case, "act", f"{case.act.value} is asked for")]
    return [] if case.ended_at is None else [_note(case, case.state.value, case.note)]


_ACTS = {
    StepKind.CANCEL_JOB: "ends the job",
    StepKind.REQUEUE_JOB: "puts the job back into the queue",
    StepKind.DELETE_POD: "deletes the pod",
    StepKind.CALL_WEBHOOK: "calls the site's webhook",
    StepKind.RUN_COMMAND: "runs the site's command",
    StepKind.REBOOT_NODE: "reboots the node when its jobs have ended, and keeps it closed",
    StepKind.DRAIN_NODE: "lets no new job onto the node",
    StepKind.CORDON_NODE: "lets no new pod onto the node",
    StepKind.RESUME_NODE: "returns the node to the queue",
}


def act_sentence(case: PolicyCase) -> str:
    """What the act of a case does."""
    what = f"job {case.job}" if case.job else f"what {case.username or 'somebody'} has there"
    return f"{case.act.value}: {_ACTS[case.act]} ({what} on {case.node})"


def words_of(case: PolicyCase, word: StepKind, link: str | None) -> OwnerWords:
    """The message of a step to the owner. `link`: to answer; None: the collector has no address for people."""
    what = f"job {case.job}" if case.job else f"GPU of {case.node}"
    titles = {
        StepKind.TELL_OWNER: f"Your {what}: {case.summary}",
        StepKind.ASK_OWNER: f"Is your {what} still needed?",
        StepKind.WARN_OWNER: f"Your {what} will be ended",
    }
    at = "" if case.next_at is None else f" at {case.next_at:%Y-%m-%d %H:%M} UTC"
    paragraphs = [case.summary]
    if word is not StepKind.TELL_OWNER:
        paragraphs.append(
            f"Without an answer the next step of policy {case.policy} comes{at}; its act {act_sentence(case)}."
        )
        paragraphs += [] if link is None else [f"Still needed, or to be ended now: {link}"]
    return OwnerWords(
        f"{case.id} {case.step} {word.value} {at}",
        case.username,
        titles[word][:200],
        tuple(paragraphs),
    )
