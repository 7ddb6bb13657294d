"""Decides how silences here and in an Alertmanager become equal: `step(state, ours, theirs, now)`, a pure function.

It is level-triggered, as the planner: it compares all silences of both sides, and what it asks for is asked again until
both sides show it. A silence belongs to the side that made it. Ours carries a marker in its comment over there; one of
theirs has an id here that follows from its id there. Neither is ever carried back: there is no loop.

Invariants
- Both sides end with the same silences and the same ends, whatever answers are lost, if nothing changes for a while.
- A silence that either side ended never becomes active again. An end wins over a later end.
- A request whose answer was lost makes no second silence: the first is found by its marker, and a late one is expired.
- A silence that Alertmanager no longer lists is neither ended here nor made again there: it may have lost its data.
- The state must be stored before what is asked for is done.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain

from gpuwarden.alert import MATCHER_CHARS_MAX, Matcher, Silence, matcher_of

RuleLabels = Mapping[str, Collection[str]]
"""Labels of alerts by the name of their rule."""
TOLERANCE = timedelta(seconds=1)
"""Ends that differ by less are equal: each side rounds."""
KEPT = timedelta(days=7)
"""How long a link outlives its silence: Alertmanager lists expired ones for five days."""
THEIR_PREFIX = "am-"
"""Begins the id here of a silence that Alertmanager made."""
_MARKER = re.compile(r" ?\[gpuwarden ([0-9a-f]{8}) ([A-Za-z0-9_-]+)\]\Z")
_ONLY_THERE = ("incident", "simulated", "rule")
"""Labels that alerts have in Alertmanager and not here, and a name that means another thing there."""
_NAMES_THERE = {"rule": "alertname"}
_NAMES_HERE = {"alertname": "rule"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TheirSilence:
    """A silence as Alertmanager lists it."""

    id: str
    matchers: tuple[tuple[str, str, str], ...]
    """Name, operator and value of each."""
    author: str
    comment: str
    starts_at: datetime
    ends_at: datetime
    is_expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLink:
    """A silence that both sides have, or shall have."""

    theirs: str | None
    """Its id in Alertmanager; None: not known yet."""
    ends_at: datetime
    """Its end when both sides last agreed."""
    is_seen: bool = False
    """Whether both sides have shown it: one that is here no more has then ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncState:
    """What must be stored."""

    installation: str
    """Tells our markers from those of another collector: 8 hex digits."""
    links: Mapping[str, SilenceLink] = field(default_factory=dict)
    """By id here."""


@dataclass(frozen=True, slots=True)
class CreateThere:
    """Make our silence in Alertmanager, and pass its id to `created`."""

    silence: Silence


@dataclass(frozen=True, slots=True)
class ExpireThere:
    """Expire a silence in Alertmanager."""

    id: str


@dataclass(frozen=True, slots=True)
class SaveHere:
    """Insert or replace a silence here."""

    silence: Silence


Effect = CreateThere | ExpireThere | SaveHere


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The result of `step`."""

    state: SyncState
    effects: Sequence[Effect]
    not_carried: Mapping[str, str]
    """Why a silence stays on its side, by its id there or here."""


class NotCarriedError(ValueError):
    """The other side cannot express a silence."""


def step(
    state: SyncState,
    ours: Mapping[str, Silence],
    theirs: Mapping[str, TheirSilence],
    rules: RuleLabels,
    now: datetime,
) -> SyncPlan:
    """What must be done at `now`. `ours` includes silences that ended within KEPT; `theirs` all that are listed."""
    links = {
        key: link for key, link in state.links.items() if key in ours or now - link.ends_at < KEPT
    }
    effects: list[Effect] = []
    not_carried: dict[str, str] = {}
    marked: dict[str, list[TheirSilence]] = {}
    made_here = {
        link.theirs: key for key, link in links.items() if not key.startswith(THEIR_PREFIX)
    }
    foreign = []
    for one in theirs.values():
        # A person there may have edited the comment.
        ours_id = made_here.get(one.id) or _marked(one, state.installation)
        if ours_id is None:
            foreign.append(one)
        else:
            marked.setdefault(ours_id, []).append(one)
    for ours_id, copies in marked.items():
        if ours_id not in ours:
            effects += _expired(copies)
    for silence in ours.values():
        if silence.id.startswith(THEIR_PREFIX):
            continue
        try:
            effects += _ours(silence, links, marked.get(silence.id, []), theirs, now)
        except NotCarriedError as error:
            not_carried[silence.id] = str(error)
    for one in foreign:
        if not can_match(one, rules):
            continue
        try:
            effects += _theirs(one, links, ours, now)
        except NotCarriedError as error:
            not_carried[one.id] = str(error)
    return SyncPlan(replace(state, links=links), effects, not_carried)


def created(state: SyncState, ours_id: str, theirs_id: str) -> SyncState:
    """The state after Alertmanager has answered with the id of our silence."""
    link = state.links.get(ours_id)
    if link is None or link.theirs is not None:
        return state
    return replace(state, links={**state.links, ours_id: replace(link, theirs=theirs_id)})


def _ours(
    silence: Silence,
    links: dict[str, SilenceLink],
    copies: Sequence[TheirSilence],
    theirs: Mapping[str, TheirSilence],
    now: datetime,
) -> list[Effect]:
    """What a silence that was made here needs. Raises NotCarriedError."""
    link = links.get(silence.id)
    if link is None:
        if silence.ends_at <= now:
            return _expired(copies)
        matchers_there(silence)
        link = links[silence.id] = SilenceLink(theirs=None, ends_at=silence.ends_at)
    if link.theirs is None and copies:
        # One that was expired was expired by a person: it is the silence that they know.
        first = min(copies, key=lambda one: (not one.is_expired, one.ends_at, one.id))
        link = links[silence.id] = replace(link, theirs=first.id)
    if link.theirs is None:
        return [] if silence.ends_at <= now else [CreateThere(silence)]
    effects = _expired(one for one in copies if one.id != link.theirs)
    known = theirs.get(link.theirs)
    return effects if known is None else effects + _agreed(silence, known, links, now)


def _theirs(
    one: TheirSilence, links: dict[str, SilenceLink], ours: Mapping[str, Silence], now: datetime
) -> list[Effect]:
    """What a silence that was made in Alertmanager needs. Raises NotCarriedError."""
    silence = ours.get(id_here(one.id))
    if silence is not None:
        return _agreed(silence, one, links, now)
    if one.is_expired or one.ends_at <= now:
        return []
    known = links.get(id_here(one.id))
    if known is not None and known.is_seen:
        return _expired([one])  # it ended here while Alertmanager was away
    silence = silence_here(one)
    links[silence.id] = SilenceLink(theirs=one.id, ends_at=one.ends_at)
    return [SaveHere(silence)]


def _agreed(
    silence: Silence, one: TheirSilence, links: dict[str, SilenceLink], now: datetime
) -> list[Effect]:
    """Give both the same end. Each is compared with the end on which they last agreed."""
    link = links.setdefault(silence.id, SilenceLink(theirs=one.id, ends_at=one.ends_at))
    their_end = min(one.ends_at, now) if one.is_expired else one.ends_at
    if _is_same(silence.ends_at, their_end):
        links[silence.id] = replace(link, ends_at=silence.ends_at, is_seen=True)
        return []
    is_ended_here = silence.ends_at <= now and not _is_same(silence.ends_at, link.ends_at)
    if is_ended_here:
        return _expired([one])
    if _is_same(their_end, link.ends_at) and silence.ends_at <= now:
        return []  # it ends by itself there, too
    starts_at = min(silence.starts_at, their_end)
    return [SaveHere(replace(silence, starts_at=starts_at, ends_at=their_end))]


def _is_same(one: datetime, other: datetime) -> bool:
    return abs(one - other) < TOLERANCE


def _expired(copies: Iterable[TheirSilence]) -> list[Effect]:
    return [ExpireThere(one.id) for one in copies if not one.is_expired]


def id_here(theirs_id: str) -> str:
    """The id here of a silence that Alertmanager made."""
    digest = hashlib.blake2b(theirs_id.encode(), digest_size=8).hexdigest()
    return THEIR_PREFIX + digest


def comment_there(silence: Silence, installation: str) -> str:
    """The comment with the marker that finds the silence again."""
    return f"{silence.comment} [gpuwarden {installation} {silence.id}]".strip()


def _marked(one: TheirSilence, installation: str) -> str | None:
    found = _MARKER.search(one.comment)
    return found[2] if found and found[1] == installation else None


def matchers_there(silence: Silence) -> tuple[tuple[str, str, str], ...]:
    """Name, operator and value of each matcher in Alertmanager. Raises NotCarriedError."""
    if silence.fingerprint is not None:
        raise NotCarriedError("an acknowledgement is of one alert, which no matcher names")
    if all(matcher.matches({}) for matcher in silence.matchers):
        raise NotCarriedError("no matcher needs a label, which Alertmanager refuses")
    found = []
    for matcher in silence.matchers:
        if matcher.name in ("alertname", "incident", "simulated"):
            raise NotCarriedError(f"{matcher}: {matcher.name} is another label in Alertmanager")
        name = _NAMES_THERE.get(matcher.name, matcher.name)
        found.append((name, matcher.operator, matcher.value))
    return tuple(found)


def silence_here(one: TheirSilence) -> Silence:
    """The silence as it is here. Raises NotCarriedError."""
    return Silence(
        id=id_here(one.id),
        matchers=tuple(_matcher_here(*written) for written in one.matchers),
        author=_line(one.author) or "Alertmanager",
        comment=_line(one.comment),
        starts_at=one.starts_at,
        ends_at=one.ends_at,
    )


def _matcher_here(name: str, operator: str, value: str) -> Matcher:
    if name in _ONLY_THERE:
        raise NotCarriedError(f"{name}{operator}{value}: alerts here have no label {name}")
    text = f"{_NAMES_HERE.get(name, name)}{operator}{value}"
    if len(text) > MATCHER_CHARS_MAX or not text.isprintable() or text.strip() != text:
        raise NotCarriedError(
            f"{text:.40}: a matcher here has at most {MATCHER_CHARS_MAX} printable characters"
        )
    try:
        return matcher_of(text)
    except ValueError as error:
        raise NotCarriedError(str(error)) from error


def can_match(one: TheirSilence, rules: RuleLabels) -> bool:
    """Whether alerts of these rules can match: one that needs a label of others is not about GPUs."""
    labels = {"severity", *_ONLY_THERE, *chain.from_iterable(rules.values())}
    for name, operator, value in one.matchers:
        try:
            matcher = matcher_of(f"{name}{operator}{value}")
        except ValueError:
            continue
        if name == "alertname":
            if not any(matcher.matches({name: rule}) for rule in rules):
                return False
        elif name not in labels and not matcher.matches({}):
            return False
    return True


def _line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:1000]
