"""A cause hides what follows from it, a silence what someone does not want to hear of."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.silence import Silence, matcher_of
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.evaluation.muting import graph_problems, reasons

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rules_of(graph: dict[str, dict[str, list[str]]]) -> list[Rule]:
    """Rules with labels node and gpu, and what inhibits them."""
    lines = [
        f"  - {{name: {name}, severity: info, labels: [node, gpu], summary: s, remedy: r,"
        f" inhibited_by: {by}, sql: SELECT $now}}"
        for name, by in graph.items()
    ]
    return parse("rules:\n" + "\n".join(lines), "r.yaml")


CHAIN = rules_of(
    {
        "node_down": {},
        "gpu_lost": {"node_down": ["node"]},
        "gpu_idle": {"gpu_lost": ["node", "gpu"], "power_out": []},
        "power_out": {},
    }
)


def alert(rule: str, node: str, gpu: int | None = None, *, fires: bool = True) -> Alert:
    labels = {"node": node} | ({} if gpu is None else {"gpu": str(gpu)})
    return Alert(
        fingerprint=f"{rule} {node} {gpu}",
        rule=rule,
        severity=Severity.INFO,
        state=AlertState.FIRING if fires else AlertState.PENDING,
        labels=labels,
        summary="",
        remedy="",
        value=None,
        usd_per_hour=None,
        began_at=NOW,
        active_at=NOW,
        seen_at=NOW,
    )


def muted(*alerts: Alert, silences: tuple[Silence, ...] = ()) -> dict[str, str]:
    return reasons(alerts, {rule.name: rule for rule in CHAIN}, silences, NOW)


@pytest.mark.parametrize(
    ("alerts", "expected"),
    [
        ([alert("gpu_lost", "n1", 0)], {}),
        (
            [alert("node_down", "n1"), alert("gpu_lost", "n1", 0), alert("gpu_lost", "n2", 0)],
            {"gpu_lost n1 0": "inhibited by node_down on node n1"},
        ),
        ([alert("node_down", "n1", fires=False), alert("gpu_lost", "n1", 0)], {}),
        (
            # A cause that is muted itself still explains.
            [alert("node_down", "n1"), alert("gpu_lost", "n1", 3), alert("gpu_idle", "n1", 3)],
            {
                "gpu_lost n1 3": "inhibited by node_down on node n1",
                "gpu_idle n1 3": "inhibited by gpu_lost on node n1, gpu 3",
            },
        ),
        ([alert("gpu_lost", "n1"), alert("gpu_idle", "n1")], {}),
        (
            [alert("power_out", "x"), alert("gpu_idle", "n1", 3)],
            {"gpu_idle n1 3": "inhibited by power_out"},
        ),
        ([alert("node_down", "n1"), alert("gone", "n1")], {}),
    ],
)
def test_an_inhibitor_mutes_where_the_labels_are_the_same(
    alerts: list[Alert], expected: dict[str, str]
) -> None:
    assert muted(*alerts) == expected


def test_a_silenced_cause_still_explains_and_comes_before_a_silence() -> None:
    silence = Silence(
        id="s",
        matchers=(matcher_of("node=n1"),),
        author="alice",
        comment="",
        starts_at=NOW,
        ends_at=NOW + timedelta(hours=1),
    )
    found = muted(alert("node_down", "n1"), alert("gpu_lost", "n1", 0), silences=(silence,))
    assert found == {
        "node_down n1 None": "silenced until 13:00 UTC by alice",
        "gpu_lost n1 0": "inhibited by node_down on node n1",
    }


def test_a_sound_graph_has_no_problem() -> None:
    assert graph_problems(CHAIN) == []


def test_slips_in_the_graph_are_named() -> None:
    rules = rules_of({"a": {"b": ["node"], "none": []}, "b": {"c": []}, "c": {"a": []}})
    texts = [str(problem) for problem in graph_problems(rules)]
    assert any("a: inhibited_by: there is no rule 'none'" in text for text in texts)
    assert any("a cycle would hide all of it" in text for text in texts)
    assert all(text.startswith("r.yaml:") for text in texts)


def test_a_rule_cannot_inhibit_itself() -> None:
    assert "cycle" in str(graph_problems(rules_of({"a": {"a": ["node"]}}))[0])


def test_labels_that_are_compared_must_be_labels_of_both() -> None:
    other = parse(
        "rules: [{name: rack_down, severity: info, labels: [rack], summary: s, remedy: r,"
        " sql: SELECT $now}]",
        "o.yaml",
    )
    problems = graph_problems([*rules_of({"a": {"rack_down": ["node"]}}), *other])
    assert [str(p) for p in problems] == [
        "r.yaml:2:90: a: inhibited_by: rack_down has no label 'node'"
    ]
