"""Overrides change a rule for a part of the fleet, and every slip in them is named by its place."""

import pytest

from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.definition.overrides import (
    Location,
    Locations,
    Override,
    OverridePlan,
    parse_overrides,
    variant_at,
)
from gpuwarden_rules.definition.yaml_positions import RuleFileError

(RULE,) = RULES = parse(
    """
rules:
  - {name: gpu_hot, severity: warning, labels: [node], params: {above: 85, window: 1m, who: x},
     summary: s, remedy: r, sql: "SELECT $now, $above, $window, $who"}
""",
    "r.yaml",
)


def overrides_of(text: str, rules: list[Rule] = RULES) -> list[Override]:
    return parse_overrides("overrides:\n" + text, "o.yaml", rules)


def at(overrides: list[Override], **where: str) -> tuple[object, ...]:
    labels = frozenset((k, v) for k, v in where.items() if k not in ("node", "model"))
    place = Location(where.get("node", ""), where.get("model", ""), labels)
    variant = variant_at(RULE, overrides, place)
    return dict(variant.params)["above"], variant.severity, variant.is_enabled


def test_what_matches_counts_and_the_later_one_more() -> None:
    overrides = overrides_of("""
  - {rules: [gpu_hot], match: {model: "H100*"}, params: {above: 90}}
  - {rules: ["gpu_*"], match: {model: "H100*", team: vision}, severity: critical, params: {above: 95}}
  - {rules: [gpu_hot], match: {node: "lab-?"}, enabled: false}
""")
    assert at(overrides) == (85, None, True)
    assert at(overrides, model="H100-SXM") == (90, None, True)
    assert at(overrides, model="H100-SXM", team="vision") == (95, "critical", True)
    assert at(overrides, node="lab-1", model="H100-SXM") == (90, None, False)
    assert at(overrides, node="lab-12") == (85, None, True)


def test_rows_go_to_the_parameters_of_their_place() -> None:
    overrides = overrides_of("""
  - {rules: [gpu_hot], match: {model: A}, params: {above: 90}, severity: info}
  - {rules: [gpu_hot], match: {node: n3}, enabled: false}
""")
    places = Locations(
        {"GPU-1": Location("n1", "A"), "GPU-2": Location("n2", "B"), "GPU-3": Location("n3", "A")},
        {"n1": Location("n1", "A"), "n2": Location("n2", "B"), "n3": Location("n3", "A")},
    )
    plan = OverridePlan(RULE, overrides, places)
    assert sorted(dict(v.params)["above"] for v in plan.variants) == [85, 90]
    rows = [{"gpu_uuid": "GPU-1"}, {"gpu_uuid": "GPU-2"}, {"gpu_uuid": "GPU-3"}, {"node": "n1"}, {}]
    own = {dict(variant.params)["above"]: plan.own(variant, rows) for variant in plan.variants}
    assert [row.get("gpu_uuid") for row in own[85]] == ["GPU-2", None]
    assert [(r.get("gpu_uuid"), r.get("node")) for r in own[90]] == [("GPU-1", None), (None, "n1")]
    assert {row["above"] for row in own[90]} == {90}
    assert {row["severity"] for row in own[90]} == {"info"}
    assert "severity" not in own[85][0]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("  - {rules: [gpu_hto], enabled: false}", "o.yaml:2:14: no rule is called 'gpu_hto'"),
        ("  - {rules: [gpu_hot], params: {abvoe: 1}}", "o.yaml:2:33: gpu_hot has no parameter"),
        ("  - {rules: [gpu_hot], params: {above: hot}}", "o.yaml:2:33: above must be a number"),
        ("  - {rules: [gpu_hot], params: {who: 7}}", "o.yaml:2:33: who must be a text"),
        ("  - {rules: [gpu_hot]}", "o.yaml:2:5: has no effect"),
        ("  - {rules: [gpu_hot], enabled: 1}", "o.yaml:2:33: must be true or false"),
        ("  - {rules: [gpu_hot], severity: bad}", "o.yaml:2:34: severity 'bad' must be one of"),
        ("  - {rules: [gpu_hot], match: {node: 7}, enabled: no}", "o.yaml:2:38: must be a text"),
        ("  - {rule: gpu_hot}", "o.yaml:2:6: unknown key 'rule'"),
        ("  7", "o.yaml:2:3: must be a list"),
    ],
)
def test_a_slip_is_named_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(RuleFileError) as caught:
        overrides_of(text)
    assert any(str(p).startswith(problem) for p in caught.value.problems), str(caught.value)
