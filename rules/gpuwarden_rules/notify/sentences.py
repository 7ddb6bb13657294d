"""Renders a message: a title and a few lines that fit the screen of a phone. Pure.

The lines are what and where, consequences, since when, what to do, and the cost. There are three forms: `text`,
`markdown`, and `short`, one line of at most 160 characters for pagers and SMS.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import groupby

from gpuwarden.alert import Alert
from gpuwarden.durations import readable
from gpuwarden.incident import Incident
from gpuwarden.untrusted_text import printable
from gpuwarden_rules.definition.templates import COST_UNKNOWN, usd
from gpuwarden_rules.notify.message import (
    Digest,
    MessageKind,
    MessageReason,
    Notification,
    Waster,
    of_each_node,
)

FORMS = ("text", "markdown", "short")
SHORT_CHARACTERS_MAX = 160
PLACES_MAX = 16
"""Most places that a message names; the others are counted."""
HOLDERS_MAX = 5
"""Most people and jobs that a message names; the others are counted."""
RULES_MAX = 8
"""Most rules of consequences that a message names; the others are counted."""
HIDDEN = ("gpu_uuid", "node", "owner")
"""Labels that do not help a person to distinguish places."""


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """Title and body of a message."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Style:
    """Time zone and link of all messages."""

    zone: tzinfo
    link: str | None = None
    """Address of the fleet's page."""


def rendered(message: Notification, form: str, style: Style) -> RenderedMessage:
    """The message in one of FORMS."""
    match message.kind:
        case MessageKind.TEST:
            title, paragraphs = "gpuwarden: test", ["This receiver works. Nothing is wrong."]
        case MessageKind.DIGEST:
            assert message.digest is not None
            title, paragraphs = _digest(message.digest, style)
        case MessageKind.REPORT:
            assert message.report is not None
            title, paragraphs = message.report.title, message.report.text.strip().split("\n")[1:]
        case MessageKind.POLICY:
            assert message.policy is not None
            title, paragraphs = message.policy.title, list(message.policy.paragraphs)
        case MessageKind.INCIDENT:
            title, paragraphs = _incident(message, style)
    # A title is a mail header, and names in it come from processes.
    title = _without_mentions(printable(title))
    paragraphs = [_without_mentions(printable(text, keeps="\n")) for text in paragraphs]
    if form == "short":
        return RenderedMessage(title, _short(title, paragraphs))
    if style.link and message.kind is not MessageKind.REPORT:
        paragraphs.append(style.link)
    if form == "markdown":
        return RenderedMessage(title, "\n\n".join(map(_markdown, paragraphs)))
    return RenderedMessage(title, "\n".join(paragraphs))


def _incident(message: Notification, style: Style) -> tuple[str, list[str]]:
    incident = message.incident
    assert incident is not None
    match message.reason:
        case MessageReason.RESOLVED | MessageReason.MERGED as reason:
            state = reason.value.upper()
        case MessageReason.REPEATED:
            state = f"STILL {incident.severity.value.upper()}"
        case _:
            state = incident.severity.value.upper()
    where = incident.place or (f"{incident.nodes} nodes" if incident.nodes > 1 else "fleet")
    count = f" ×{incident.roots}" if incident.roots > 1 else ""
    simulated = " (simulated)" if incident.simulated else ""
    roots, follows = message.firing[: message.roots], message.firing[message.roots :]
    lines = [incident.summary]
    if incident.roots > 1 and roots:
        lines.append(f"Where: {_places(roots, message)}.")
    if follows:
        lines.append(f"Follows: {_by_rule(follows)}{_elsewhere(roots, follows, incident)}.")
    if message.is_over:
        lines += _ended(message, incident)
    else:
        lines += _state(message, incident, style)
    return f"{state} {where}: {incident.rule}{count}{simulated}", lines


def _by_rule(alerts: Sequence[Alert]) -> str:
    """`xid_critical, gpu_idle_free ×8 and 3 other rules`, in the order of urgency."""
    counts = Counter(alert.rule for alert in alerts)
    named = [
        f"{rule} ×{count}" if count > 1 else rule for rule, count in [*counts.items()][:RULES_MAX]
    ]
    more = len(counts) - len(named)
    return ", ".join(named) + (f" and {more} other rules" if more else "")


def _elsewhere(roots: Sequence[Alert], follows: Sequence[Alert], incident: Incident) -> str:
    """Nodes that the message does not name elsewhere: `, also on dgx-08 and 3 other nodes`."""
    named = {alert.labels.get("node") for alert in roots} | {incident.labels.get("node"), None}
    found = {alert.labels.get("node") for alert in follows} - named
    nodes = sorted(node for node in found if node)
    if not nodes:
        return ""
    more = len(nodes) - PLACES_MAX
    others = f" and {more} other nodes" if more > 0 else ""
    return f", also on {', '.join(nodes[:PLACES_MAX])}{others}"


def _state(message: Notification, incident: Incident, style: Style) -> list[str]:
    """Lines of an open incident: since when, what to do, cost, and muted, unknown or resolved alerts."""
    age = (message.made_at - incident.began_at).total_seconds()
    lines = [f"Since {_clock(incident.began_at, message.made_at, style)} ({readable(age)})."]
    if incident.unknown_since:
        at = _clock(incident.unknown_since, message.made_at, style)
        lines.append(f"Unknown since {at}: no data says whether it still holds.")
    muted = [alert.muted for alert in message.firing if alert.muted]
    if muted:
        lines.append(f"Muted: {len(muted)} of {message.firing_total} alerts ({muted[0]}).")
    lines.append(f"Do: {' '.join(incident.remedy.split())}")
    if whose := _whose(message.firing[: message.roots], incident.summary):
        lines.append(f"Affects: {whose}.")
    lines.append(_cost(message))
    if message.resolved:
        lines.append(f"Over: {message.resolved_total} alerts since the last message.")
    return lines


def _whose(roots: Sequence[Alert], summary: str) -> str:
    """`bob's job 55, job 60 and 3 more`: who suffers, as far as the sentence does not say it."""
    named = dict.fromkeys(
        _holder(alert)
        for alert in roots
        if any(name and name not in summary for name in (alert.owner, alert.job))
    )
    more = len(named) - HOLDERS_MAX
    return ", ".join([*named][:HOLDERS_MAX]) + (f" and {more} more" if more > 0 else "")


def _holder(alert: Alert) -> str:
    if not alert.job:
        return alert.owner or ""
    return f"{alert.owner}'s job {alert.job}" if alert.owner else f"job {alert.job}"


def _cost(message: Notification) -> str:
    if message.usd_per_hour is None:
        return "Cost: unknown."
    so_far = "" if message.usd_so_far is None else f", {usd(message.usd_so_far)} so far"
    roots = message.firing[: message.roots]
    least = "at least " if any(alert.usd_per_hour is None for alert in roots) else ""
    return f"Cost: {least}{usd(message.usd_per_hour)}/h{so_far}."


def _ended(message: Notification, incident: Incident) -> list[str]:
    """Lines of an ended incident: duration and cost, or the incident that it was merged into."""
    if message.reason is MessageReason.MERGED:
        return [f"It is part of incident {incident.merged_into}."]
    lasted = ((incident.resolved_at or message.made_at) - incident.began_at).total_seconds()
    cost = "" if message.usd_so_far is None else f", cost {usd(message.usd_so_far)}"
    others = Counter(alert.rule for alert in message.resolved if alert.rule != incident.rule)
    with_it = f" With it: {', '.join([*others][:RULES_MAX])}." if others else ""
    if incident.unknown_since:
        return [
            f"Closed after {readable(lasted)}{cost}: no data says whether it still holds.{with_it}"
        ]
    return [f"Over after {readable(lasted)}{cost}.{with_it}"]


def _places(alerts: Sequence[Alert], message: Notification) -> str:
    """`gpu 1, 2, 3`; `dgx-07 gpu 1, dgx-08 gpu 1`: the labels in which the roots differ."""
    common = message.incident.labels if message.incident else {}
    places = (_place(alert, common) for alert in of_each_node(alerts, PLACES_MAX))
    named = sorted(places, key=lambda place: (place[0], place[1].rjust(8)))
    texts = []
    for head, group in groupby(named, key=lambda place: place[0]):
        texts.append(" ".join(filter(None, (head, ", ".join(tail for _, tail in group)))))
    more = len(alerts) - len(named)
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def _place(alert: Alert, common: Mapping[str, str]) -> tuple[str, str]:
    """(`dgx-07 gpu`, `1`) of an alert: the last value is apart, so that neighbours share the rest.

    Labels that all roots share are in the title, and left out here.
    """
    node = "" if "node" in common else alert.labels.get("node", "")
    labels = [
        (name, value)
        for name, value in alert.labels.items()
        if name not in HIDDEN and name not in common
    ]
    if not labels:
        return "", node or alert.labels.get("node", alert.rule)
    *before, (name, value) = labels
    return " ".join(filter(None, (node, *(f"{k} {v}" for k, v in before), name))), value


def _clock(instant: datetime, now: datetime, style: Style) -> str:
    """The time of day, with the date if it is another day."""
    local, today = instant.astimezone(style.zone), now.astimezone(style.zone)
    form = "%H:%M %Z" if local.date() == today.date() else "%d %b %H:%M %Z"
    return local.strftime(form)


def _digest(digest: Digest, style: Style) -> tuple[str, list[str]]:
    until = digest.until.astimezone(style.zone).strftime("%d %b %H:%M %Z")
    hours = readable((digest.until - digest.since).total_seconds())
    share = f" ({digest.wasted_hours / digest.gpu_hours:.0%})" if digest.gpu_hours else ""
    wasted = COST_UNKNOWN if digest.usd is None else usd(digest.usd)
    used = f"{digest.wasted_hours:,.0f} of {digest.gpu_hours:,.0f} GPU-hours{share}"
    lines = [f"In the {hours} to {until}: {used} were wasted: {wasted}."]
    if digest.categories:
        lines.append(", ".join(f"{w.name} {w.hours:,.0f} h" for w in digest.categories) + ".")
    lines += _wasters("Most on", digest.wasters, "GPU-h")
    lines += _wasters("Costliest alerts", digest.alerts, "h")
    return f"GPU waste: {wasted}{' (simulated)' if digest.simulated else ''}", lines


def _wasters(head: str, wasters: Sequence[Waster], unit: str) -> list[str]:
    if not wasters:
        return []
    lines = [
        f"{number}. {w.name}: {COST_UNKNOWN if w.usd is None else usd(w.usd)}, {w.hours:,.1f} {unit}"
        for number, w in enumerate(wasters, 1)
    ]
    return [f"{head}:", *lines]


_MENTION = re.compile(r"@(?=(?:everyone|here|channel|all)\b)", re.IGNORECASE)


def _without_mentions(text: str) -> str:
    """The text without mentions that notify a whole chat."""
    return _MENTION.sub("@ ", text)


def _short(title: str, paragraphs: Sequence[str]) -> str:
    """The title and as much of the first sentence as fits."""
    text = f"{title}. {paragraphs[0]}" if paragraphs else title
    return text if len(text) <= SHORT_CHARACTERS_MAX else text[: SHORT_CHARACTERS_MAX - 1] + "…"


def _markdown(line: str) -> str:
    """The line in Markdown: a heading is bold, all other marks are escaped."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]<>#" else c for c in line)
    head, colon, rest = escaped.partition(": ")
    is_heading = head in ("Where", "Follows", "Muted", "Do", "Affects", "Cost", "Over") and colon
    return f"**{head}:** {rest}" if is_heading else escaped
