"""Runs test cases of policies: those of `idle.yaml` are in `idle.test.yaml` beside it.

    cases:
      - name: ada's job is left alone, bob's ends after the wait
        policy: cull_idle
        alerts:              offsets are from a Monday, 00:00 UTC
          - {username: ada, fires: 9h, lasts: 6h, expect: protected}
          - {username: bob, job: "7", node: n1, labels: {team: vision}, fires: 9h, expect: acted, act: 13h}

An alert without `lasts` still fires at the end, fifteen days after the last one began.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from yaml.nodes import Node

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.durations import readable, seconds_of
from gpuwarden_rules.definition.yaml_positions import YamlReader, read_text
from gpuwarden_rules.policies.dry_run import Outcome, PolicyTrial, tried
from gpuwarden_rules.policies.language import Policy, PolicySubject

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
_TEXTS = ("node", "model", "username", "job")
_ENDS_AFTER = timedelta(days=15)
_NOT_MATCHED = "not matched"
EXPECTED = (*(outcome.name.lower() for outcome in Outcome), _NOT_MATCHED)
"""What can be expected of an alert."""


@dataclass(frozen=True, slots=True)
class PolicyCheck:
    """The result of a case."""

    name: str
    path: str
    line: int
    difference: str
    """What was not as expected, a line for each alert; empty: nothing."""


@dataclass(frozen=True, slots=True)
class _Planted:
    subject: PolicySubject
    fires_s: float
    lasts_s: float | None
    expected: str
    act_s: float | None
    line: int


def check_file(path: Path, policies: Sequence[Policy]) -> list[PolicyCheck]:
    """Run the cases of a file. Raises RuleFileError."""
    reader = YamlReader(str(path), read_text(path))
    nodes = reader.fields(reader.root(), required=("cases",))
    known = {policy.name: policy for policy in policies}
    found = [_checked(reader, node, known) for node in reader.items(nodes.get("cases"))]
    reader.raise_problems()
    return [one for one in found if one is not None]


def _checked(reader: YamlReader, node: Node, policies: Mapping[str, Policy]) -> PolicyCheck | None:
    nodes = reader.fields(node, required=("name", "policy", "alerts"))
    name, wanted = reader.text(nodes.get("name")), reader.text(nodes.get("policy"))
    policy = policies.get(wanted or "")
    if wanted is not None and policy is None:
        reader.note(nodes["policy"], f"no policy is called {wanted!r}")
    planted = [_planted(reader, item) for item in reader.items(nodes.get("alerts"))]
    whole = [one for one in planted if one is not None]
    if name is None or policy is None or len(whole) != len(planted) or not whole:
        return None
    until = MONDAY + timedelta(seconds=max(one.fires_s for one in whole)) + _ENDS_AFTER
    alerts = [_alert(policy, number, one) for number, one in enumerate(whole)]
    trials = {
        trial.alert.fingerprint: trial
        for trial in tried(policy, alerts, [one.subject for one in whole], until)
    }
    lines = [
        f"line {one.line}: {said}"
        for alert, one in zip(alerts, whole, strict=True)
        if (said := _difference(one, trials.get(alert.fingerprint)))
    ]
    return PolicyCheck(name, reader.path, node.start_mark.line + 1, "\n".join(lines))


def _planted(reader: YamlReader, node: Node) -> _Planted | None:
    optional = (*_TEXTS, "labels", "lasts", "act")
    nodes = reader.fields(node, required=("fires", "expect"), optional=optional)
    texts = {name: reader.text(nodes.get(name)) or "" for name in _TEXTS}
    labels = {key: reader.text(value) or "" for key, (_, value) in reader.entries(nodes.get("labels")).items()}  # fmt: skip
    fires, lasts, act = (_offset(reader, nodes.get(name)) for name in ("fires", "lasts", "act"))
    expected = reader.text(nodes.get("expect"))
    if expected is not None and expected not in EXPECTED:
        reader.note(nodes["expect"], f"{expected!r} must be one of {', '.join(EXPECTED)}")
    if fires is None or expected not in EXPECTED:
        return None
    subject = PolicySubject(**texts, labels=labels)
    return _Planted(subject, fires, lasts, expected, act, node.start_mark.line + 1)


def _offset(reader: YamlReader, node: Node | None) -> float | None:
    text = reader.text(node)
    if node is None or text is None:
        return None
    seconds = seconds_of(text)
    if seconds is None:
        reader.note(node, f"{text!r} must be a duration such as 30m or 9h")
    return seconds


def _alert(policy: Policy, number: int, one: _Planted) -> Alert:
    fired = MONDAY + timedelta(seconds=one.fires_s)
    ends = None if one.lasts_s is None else fired + timedelta(seconds=one.lasts_s)
    return Alert(
        fingerprint=f"{number:016x}", rule=policy.rule, severity=Severity.WARNING,
        state=AlertState.FIRING if ends is None else AlertState.RESOLVED, labels={"gpu_uuid": f"GPU-{number}"},
        summary="", remedy="", value=None, usd_per_hour=None, began_at=fired, active_at=fired, fired_at=fired,
        resolved_at=ends, seen_at=ends or fired,
    )  # fmt: skip


def _difference(one: _Planted, trial: PolicyTrial | None) -> str:
    found = _NOT_MATCHED if trial is None else trial.outcome.name.lower()
    if found != one.expected:
        return f"expected {one.expected}, and it is {found}"
    if one.act_s is None or trial is None:
        return ""
    if trial.act_at is None:
        return "expected an act, and there is none"
    at_s = (trial.act_at - MONDAY).total_seconds()
    if at_s == one.act_s:
        return ""
    return f"expected the act at {readable(one.act_s)}, and it is at {readable(at_s)}"
