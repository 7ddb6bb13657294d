"""Words a message: a title and a few lines that fit a phone's screen. Pure.

What and where, since when, what it costs, what to do; then what is over. Three forms: `text`,
`markdown`, and `short`, one line of at most 160 characters for pagers and SMS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import groupby

from gpuwarden.alert import Alert
from gpuwarden.durations import readable
from gpuwarden_rules.definition.templates import COST_UNKNOWN, usd
from gpuwarden_rules.notify.message import Digest, MessageKind, Notification, Waster

FORMS = ("text", "markdown", "short")
SHORT_CHARACTERS_MAX = 160
PLACES_MAX = 16
"""Places that a message names; the rest is counted."""
RULES_MAX = 4
"""Rules of one group that a message describes; the rest is counted."""
HIDDEN = ("gpu_uuid", "node", "owner")
"""Labels that do not tell the places of one node apart for a person."""


@dataclass(frozen=True, slots=True)
class RenderedMessage:
    """A message in words."""

    title: str
    body: str


@dataclass(frozen=True, slots=True)
class Style:
    """What the reader of all messages has in common."""

    zone: tzinfo
    link: str | None = None
    """The page of the fleet."""


def rendered(message: Notification, form: str, style: Style) -> RenderedMessage:
    """The message in one of FORMS."""
    match message.kind:
        case MessageKind.TEST:
            title, paragraphs = "gpuwarden: test", ["This receiver works. Nothing is wrong."]
        case MessageKind.DIGEST:
            assert message.digest is not None
            title, paragraphs = _digest(message.digest, style)
        case MessageKind.ALERTS:
            title, paragraphs = _alerts(message, style)
    if form == "short":
        return RenderedMessage(title, _short(title, paragraphs))
    if style.link:
        paragraphs.append(style.link)
    if form == "markdown":
        return RenderedMessage(title, "\n\n".join(map(_markdown, paragraphs)))
    return RenderedMessage(title, "\n".join(paragraphs))


def _alerts(message: Notification, style: Style) -> tuple[str, list[str]]:
    shown = message.firing or message.resolved
    total = message.firing_total or message.resolved_total
    severity = message.severity.value if message.severity else ""
    state = severity.upper() if message.firing else "RESOLVED"
    again = "STILL " if message.is_repeat else ""
    rules = sorted({alert.rule for alert in shown})
    nodes = sorted({node for alert in shown if (node := alert.labels.get("node"))})
    what = rules[0] if len(rules) == 1 else f"{len(rules)} rules"
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else "fleet"
    count = f" ×{total}" if total > 1 else ""
    simulated = " (simulated)" if any(alert.simulated for alert in shown) else ""
    lines = []
    for alerts in _by_rule(message.firing)[:RULES_MAX]:
        lines += _firing(alerts, message, style)
    lines += _cost(message)
    lines += _over(message)
    hidden = len(rules) - RULES_MAX
    if hidden > 0 and message.firing:
        lines.append(f"… and {hidden} more rules.")
    return f"{again}{state} {where}: {what}{count}{simulated}", lines


def _by_rule(alerts: Sequence[Alert]) -> list[list[Alert]]:
    """The alerts of each rule, rules in the order of their first."""
    rules: dict[str, list[Alert]] = {}
    for alert in alerts:
        rules.setdefault(alert.rule, []).append(alert)
    return list(rules.values())


def _firing(alerts: Sequence[Alert], message: Notification, style: Style) -> list[str]:
    """What is wrong, where else, since when, and what to do."""
    first, others = alerts[0], alerts[1:]
    lines = [first.summary]
    is_alone = all(alert.rule == first.rule for alert in message.firing)
    total = message.firing_total if is_alone else len(alerts)
    if others:
        lines.append(f"{total - 1} more: {_places(others, total - 1, message)}.")
    began = min(alert.began_at for alert in alerts)
    age = (message.made_at - began).total_seconds()
    lines.append(f"Since {_clock(began, message.made_at, style)} ({readable(age)}).")
    lines.append(f"Do: {' '.join(first.remedy.split())}")
    return lines


def _cost(message: Notification) -> list[str]:
    """What it costs, where the summary of a lone alert does not say it."""
    if not message.firing or (message.firing_total <= 1 and _says_cost(message.firing[0])):
        return []
    if message.usd_per_hour is None:
        return ["Cost: unknown."]
    so_far = "" if message.usd_so_far is None else f", {usd(message.usd_so_far)} so far"
    least = "at least " if any(a.usd_per_hour is None for a in message.firing) else ""
    return [f"Cost: {least}{usd(message.usd_per_hour)}/h{so_far}."]


def _says_cost(alert: Alert) -> bool:
    if alert.usd_per_hour is None:
        return COST_UNKNOWN in alert.summary
    return f"{usd(alert.usd_per_hour)}/h" in alert.summary


def _over(message: Notification) -> list[str]:
    """What is over, after how long and at what cost."""
    if not message.resolved:
        return []
    alerts = message.resolved
    longest = max(((a.resolved_at or message.made_at) - a.began_at).total_seconds() for a in alerts)
    costs = [usd_spent for a in alerts if (usd_spent := a.usd_so_far(message.made_at)) is not None]
    cost = f", cost {usd(sum(costs))}" if costs else ""
    if message.firing:
        places = _places(alerts, message.resolved_total, message)
        return [f"Over: {places} (after {readable(longest)}{cost})."]
    lines = [alerts[0].summary]
    if len(alerts) > 1:
        others = message.resolved_total - 1
        lines.append(f"{others} more: {_places(alerts[1:], others, message)}.")
    reason = alerts[0].resolved_reason
    if reason is not None and all(alert.resolved_reason for alert in alerts):
        lines.append(f"Closed after {readable(longest)}{cost}: {reason}.")
    else:
        lines.append(f"Over after {readable(longest)}{cost}.")
    return lines


def _places(alerts: Sequence[Alert], total: int, message: Notification) -> str:
    """`gpu 1, 2, 3`; `dgx-07 gpu 1, dgx-08 gpu 1`: what tells alerts of a group apart."""
    common = message.labels
    places = (_place(alert, common) for alert in alerts)
    named = sorted(places, key=lambda place: (place[0], place[1].rjust(8)))[:PLACES_MAX]
    texts = []
    for head, group in groupby(named, key=lambda place: place[0]):
        texts.append(" ".join(filter(None, (head, ", ".join(tail for _, tail in group)))))
    more = total - len(named)
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def _place(alert: Alert, common: Mapping[str, str]) -> tuple[str, str]:
    """(`dgx-07 gpu`, `1`) of an alert: the last label apart, so that neighbours share the rest.

    What the group has in common is in the title and not said again.
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
    """The time of day, with the date where it is another one."""
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
    if digest.labels:
        lines.append(", ".join(f"{w.name} {w.hours:,.0f} h" for w in digest.labels) + ".")
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


def _short(title: str, paragraphs: Sequence[str]) -> str:
    """The title and as much of the first sentence as fits."""
    text = f"{title}. {paragraphs[0]}" if paragraphs else title
    return text if len(text) <= SHORT_CHARACTERS_MAX else text[: SHORT_CHARACTERS_MAX - 1] + "…"


def _markdown(line: str) -> str:
    """The line with its first word bold where it is a heading, and nothing else taken for a mark."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]<>#" else c for c in line)
    head, colon, rest = escaped.partition(": ")
    is_heading = head in ("Do", "Cost", "Over") and colon
    return f"**{head}:** {rest}" if is_heading else escaped
