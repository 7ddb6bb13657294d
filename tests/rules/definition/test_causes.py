"""The causes that rules declare are checked before they run."""

from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.rule_set import cause_problems


def rules_of(graph: dict[str, dict[str, list[str]]]) -> list[Rule]:
    """Rules with labels node and gpu, and what causes them."""
    lines = [
        f"  - {{name: {name}, severity: info, labels: [node, gpu], summary: s, remedy: r,"
        f" caused_by: {by}, sql: SELECT $now}}"
        for name, by in graph.items()
    ]
    return parse("rules:\n" + "\n".join(lines), "r.yaml")


def test_slips_in_the_graph_are_named() -> None:
    rules = rules_of({"a": {"b": ["node"], "none": []}, "b": {"c": []}, "c": {"a": []}})
    texts = [str(problem) for problem in cause_problems(rules)]
    assert any("a: caused_by: there is no rule 'none'" in text for text in texts)
    assert any("a cycle has no root" in text for text in texts)
    assert all(text.startswith("r.yaml:") for text in texts)


def test_a_rule_cannot_be_its_own_cause() -> None:
    assert "cycle" in str(cause_problems(rules_of({"a": {"a": ["node"]}}))[0])


def test_labels_that_are_compared_must_be_labels_of_both() -> None:
    other = parse(
        "rules: [{name: rack_down, severity: info, labels: [rack], summary: s, remedy: r,"
        " sql: SELECT $now}]",
        "o.yaml",
    )
    problems = cause_problems([*rules_of({"a": {"rack_down": ["node"]}}), *other])
    assert [str(p) for p in problems] == [
        "r.yaml:2:87: a: caused_by: rack_down has no label 'node'"
    ]
