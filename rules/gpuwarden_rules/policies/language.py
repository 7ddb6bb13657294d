"""Reads policy files. Every problem of a file is reported with line and column.

    policies:
      - name: cull_idle                     snake_case, unique
        state: dry-run                      off, dry-run (default) or on
        rule: gpu_idle_held                 alerts of this rule
        match: {team: vision, node: "dgx-*"}   none: all. node, model, username, job; other keys are labels of the node
        protect: [{username: ada}, {job: "prod-*"}]   never these
        after: 30m                          the alert must have fired for this long (default 0s)
        steps:                              in order; each waits before the next
          - {do: ask_owner, wait: 4h}
          - {do: warn_owner, wait: 30m}
          - {do: cancel_job}
        hours: {days: [mon, tue, wed, thu, fri], from: "08:00", until: "18:00", zone: Europe/Berlin}
        limits: {an_hour: 10, at_once: 50}
        undo: {after: 2h}                   of acts on nodes: opened again after this time without the alert

`docs/policies.md` is the full text.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, tzinfo
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from zoneinfo import ZoneInfo

from yaml.nodes import Node

from gpuwarden.durations import seconds_of
from gpuwarden_rules.definition.yaml_positions import (
    FileProblem,
    RuleFileError,
    YamlReader,
    read_text,
)

STEPS_MAX = 8
WAIT_S_MAX = 14 * 86400.0
COUNT_MAX = 10_000
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])\Z")
_OPTIONAL = ("state", "match", "protect", "after", "hours", "limits", "undo")


class PolicyState(StrEnum):
    """Whether a policy is considered."""

    OFF = "off"
    DRY_RUN = "dry-run"
    ON = "on"


class StepKind(StrEnum):
    """What a step does."""

    TELL_OWNER = "tell_owner"
    ASK_OWNER = "ask_owner"
    WARN_OWNER = "warn_owner"
    CANCEL_JOB = "cancel_job"
    REQUEUE_JOB = "requeue_job"
    DELETE_POD = "delete_pod"
    CALL_WEBHOOK = "call_webhook"
    RUN_COMMAND = "run_command"
    DRAIN_NODE = "drain_node"
    REBOOT_NODE = "reboot_node"
    CORDON_NODE = "cordon_node"
    RESUME_NODE = "resume_node"  # asked for by a person, never a step


WORDS = frozenset({StepKind.TELL_OWNER, StepKind.ASK_OWNER, StepKind.WARN_OWNER})
"""Steps that only say something."""
ON_NODES = frozenset(
    {
        StepKind.DRAIN_NODE,
        StepKind.REBOOT_NODE,
        StepKind.CORDON_NODE,
        StepKind.RESUME_NODE,
    }
)
"""Acts whose target is a node."""
ON_ALERTS = frozenset({StepKind.CALL_WEBHOOK, StepKind.RUN_COMMAND})
"""Acts of the site's own programs: their target is the alert. The target of all other acts is a job."""


class Day(StrEnum):
    """Days of the week, Monday first, as `datetime.weekday` counts them."""

    MON = "mon"
    TUE = "tue"
    WED = "wed"
    THU = "thu"
    FRI = "fri"
    SAT = "sat"
    SUN = "sun"


@dataclass(frozen=True, slots=True)
class PolicyStep:
    """One step, and how long the next one waits after it."""

    kind: StepKind
    wait_s: float


@dataclass(frozen=True, slots=True)
class OfficeHours:
    """When steps may be taken."""

    days: frozenset[Day]
    begins: time
    ends: time
    """Later than `begins`."""
    zone: tzinfo

    def next_at(self, at: datetime) -> datetime:
        """`at`, or the next instant within the hours; aware, in the zone of `at`."""
        local = at.astimezone(self.zone)
        for later in range(9):
            day = local.date() + timedelta(days=later)
            if list(Day)[day.weekday()] not in self.days:
                continue
            begins = datetime.combine(day, self.begins, self.zone).astimezone(at.tzinfo)
            ends = datetime.combine(day, self.ends, self.zone).astimezone(at.tzinfo)
            if at < ends:
                return max(at, begins)
        raise AssertionError("a week has one of the days")


@dataclass(frozen=True, slots=True)
class PolicySubject:
    """What a policy matches: node, model, username, job, and labels of the node."""

    node: str = ""
    model: str = ""
    username: str = ""
    job: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def fits(self, patterns: Mapping[str, str]) -> bool:
        """Whether all patterns fit; `*` and `?` are wildcards. What is not known fits none."""
        own = {"node": self.node, "model": self.model, "username": self.username, "job": self.job}
        return all(
            bool(value := own.get(key, self.labels.get(key, ""))) and fnmatchcase(value, pattern)
            for key, pattern in patterns.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is to be done about the alerts of a rule."""

    name: str
    state: PolicyState
    rule: str
    match: Mapping[str, str]
    protect: tuple[Mapping[str, str], ...]
    after_s: float
    steps: tuple[PolicyStep, ...]
    """The last one acts; the others only say something."""
    hours: OfficeHours | None
    """None: always."""
    an_hour: int | None
    """Most acts in any hour; None: no limit."""
    at_once: int | None
    """With more alerts than this at one time nothing is done: that is an incident for a person."""
    undo_after_s: float | None
    """A node is opened again when the alert has been over for this long; None: a person does it."""
    path: str
    line: int

    @property
    def act(self) -> StepKind:
        """What its last step does."""
        return self.steps[-1].kind

    def is_protected(self, subject: PolicySubject) -> bool:
        """Whether nothing may be done to it."""
        return any(subject.fits(patterns) for patterns in self.protect)


def load_policies(paths: Iterable[Path], rules: Sequence[str]) -> list[Policy]:
    """The policies of files; `rules`: names of the known rules. Raises RuleFileError."""
    found: list[Policy] = []
    problems: list[FileProblem] = []
    for path in paths:
        try:
            found += parse_policies(read_text(path), str(path), rules)
        except RuleFileError as error:
            problems += error.problems
    first: dict[str, Policy] = {}
    for policy in found:
        if (other := first.setdefault(policy.name, policy)) is not policy:
            message = f"{policy.name!r} is also in {other.path}:{other.line}"
            problems.append(FileProblem(policy.path, policy.line, 1, message))
    if problems:
        raise RuleFileError(problems)
    return found


def parse_policies(text: str, path: str, rules: Sequence[str]) -> list[Policy]:
    """The policies in a file's text; `path` is for messages. Raises RuleFileError."""
    reader = YamlReader(path, text)
    nodes = reader.fields(reader.root(), required=("policies",))
    found = [_policy(reader, item, rules) for item in reader.items(nodes.get("policies"))]
    reader.raise_problems()
    return [policy for policy in found if policy is not None]


def _policy(reader: YamlReader, node: Node, rules: Sequence[str]) -> Policy | None:
    nodes = reader.fields(node, required=("name", "rule", "steps"), optional=_OPTIONAL)
    name = reader.text(nodes.get("name"))
    if name is not None and not _NAME.match(name):
        reader.note(nodes["name"], f"{name!r} must be lower-case words joined by _")
    rule = reader.text(nodes.get("rule"))
    if rule is not None and rule not in rules:
        reader.note(nodes["rule"], f"no rule is called {rule!r}; `gpuwarden rules list` has them")
    state = _state(reader, nodes.get("state"))
    steps = _steps(reader, nodes.get("steps"))
    limits = reader.fields(nodes.get("limits"), optional=("an_hour", "at_once"))
    after_s = _duration(reader, nodes.get("after"))
    hours = _hours(reader, nodes.get("hours"))
    an_hour, at_once = (_count(reader, limits.get(key)) for key in ("an_hour", "at_once"))
    undo_after_s = _undo(reader, nodes.get("undo"), steps)
    match = _patterns(reader, nodes.get("match"))
    protect = tuple(_patterns(reader, item) for item in reader.items(nodes.get("protect")))
    if name is None or rule is None or not steps:
        return None
    return Policy(
        name=name,
        state=state,
        rule=rule,
        match=match,
        protect=protect,
        after_s=after_s,
        steps=steps,
        hours=hours,
        an_hour=an_hour,
        at_once=at_once,
        undo_after_s=undo_after_s,
        path=reader.path,
        line=node.start_mark.line + 1,
    )


def _state(reader: YamlReader, node: Node | None) -> PolicyState:
    value = reader.scalar(node)
    if isinstance(value, bool):  # YAML reads on and off so
        return PolicyState.ON if value else PolicyState.OFF
    return reader.choice(node, "state", PolicyState) or PolicyState.DRY_RUN


def _steps(reader: YamlReader, node: Node | None) -> tuple[PolicyStep, ...]:
    found: list[PolicyStep] = []
    items = reader.items(node)
    for number, item in enumerate(items, start=1):
        nodes = reader.fields(item, required=("do",), optional=("wait",))
        kind = reader.choice(nodes.get("do"), "do", StepKind)
        if kind is None:
            continue
        if kind is StepKind.RESUME_NODE:
            reader.note(item, "a policy returns no node: `gpuwarden accept NODE --resume` does")
        is_last = number == len(items)
        if is_last and kind in WORDS:
            reader.note(item, f"the last step must act, and {kind.value} only says something")
        elif not is_last and kind not in WORDS:
            reader.note(item, f"{kind.value} acts: only the last step may")
        if is_last and "wait" in nodes:
            reader.note(nodes["wait"], "nothing waits after the last step")
        found.append(PolicyStep(kind, _duration(reader, nodes.get("wait"))))
    if node is not None and not items:
        reader.note(node, "must have at least one step")
    if len(items) > STEPS_MAX:
        reader.note(items[STEPS_MAX], f"more than {STEPS_MAX} steps")
    return tuple(found)


def _undo(reader: YamlReader, node: Node | None, steps: Sequence[PolicyStep]) -> float | None:
    if node is None:
        return None
    nodes = reader.fields(node, required=("after",))
    if steps and steps[-1].kind not in ON_NODES:
        reader.note(node, f"{steps[-1].kind.value} cannot be undone: only acts on nodes can")
    return _duration(reader, nodes.get("after"))


def _patterns(reader: YamlReader, node: Node | None) -> dict[str, str]:
    found = {key: reader.text(value) for key, (_, value) in reader.entries(node).items()}
    if node is not None and not found:
        reader.note(node, "must name at least one of node, model, username, job, or a label")
    return {key: value for key, value in found.items() if value is not None}


def _duration(reader: YamlReader, node: Node | None) -> float:
    text = reader.text(node)
    if node is None or text is None:
        return 0.0
    seconds = seconds_of(text)
    if seconds is None or seconds > WAIT_S_MAX:
        reader.note(node, f"{text!r} must be a duration up to 14d, such as 30m")
        return 0.0
    return seconds


def _count(reader: YamlReader, node: Node | None) -> int | None:
    value = reader.scalar(node)
    if node is None or value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        reader.note(node, f"must be a whole number from 1 to {COUNT_MAX}")
        return None
    return value


def _hours(reader: YamlReader, node: Node | None) -> OfficeHours | None:
    if node is None:
        return None
    nodes = reader.fields(node, required=("days", "from", "until"), optional=("zone",))
    days = [reader.choice(item, "day", Day) for item in reader.items(nodes.get("days"))]
    begins, ends = (_time(reader, nodes.get(key)) for key in ("from", "until"))
    if begins is not None and ends is not None and begins >= ends:
        reader.note(nodes["until"], "must be later than from")
    if "days" in nodes and not days:
        reader.note(nodes["days"], "must name at least one day")
    zone = reader.text(nodes.get("zone")) or "UTC"
    try:
        known = ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        reader.note(nodes["zone"], f"no time zone is called {zone!r}; write Europe/Berlin or UTC")
        return None
    if begins is None or ends is None or not days:
        return None
    return OfficeHours(frozenset(day for day in days if day is not None), begins, ends, known)


def _time(reader: YamlReader, node: Node | None) -> time | None:
    text = reader.text(node)
    if node is None or text is None:
        return None
    found = _TIME.match(text)
    if found is None:
        reader.note(node, f"{text!r} must be a time such as '08:30'")
        return None
    return time(int(found[1]), int(found[2]))
