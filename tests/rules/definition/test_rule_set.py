"""The rule set is the built-in pack, an operator's own rules, and overrides, checked together."""

import pytest

from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.definition.rule_set import load_rule_set
from gpuwarden_rules.definition.yaml_positions import RuleFileError

OWN = """\
rules:
  - name: {name}
    severity: info
    labels: [node]
    summary: mine
    remedy: none
    caused_by: {by}
    sql: SELECT node, $now AS t FROM nodes
"""


def write(folder, name: str = "mine", by: str = "{}", file: str = "mine.yaml") -> None:
    (folder / file).write_text(OWN.format(name=name, by=by))


def test_without_folders_it_is_the_built_in_pack() -> None:
    rule_set = load_rule_set([])
    assert list(rule_set.rules) == builtin_rules()
    assert rule_set.overrides == ()


def test_own_rules_stand_beside_the_pack_and_replace_by_name(tmp_path) -> None:
    write(tmp_path)
    write(tmp_path, "vram_growth", file="other.yaml")
    (tmp_path / "mine.test.yaml").write_text("this is not a rule file")
    (tmp_path / "overrides.yaml").write_text(
        "overrides: [{rules: [mine, gpu_idle_free], severity: critical}]"
    )
    rule_set = load_rule_set([tmp_path])
    assert len(rule_set.rules) == len(builtin_rules()) + 1
    (own,) = [rule for rule in rule_set.rules if rule.name == "vram_growth"]
    assert str(own.summary) == "mine"
    assert len(rule_set.overrides) == 1


def test_every_problem_of_all_files_is_told(tmp_path) -> None:
    write(tmp_path, by="{nobody: [node]}")
    (tmp_path / "overrides.yaml").write_text("overrides: [{rules: [nothing], enabled: false}]")
    with pytest.raises(RuleFileError) as caught:
        load_rule_set([tmp_path, tmp_path / "none"])
    texts = [str(problem) for problem in caught.value.problems]
    assert len(texts) == 3
    assert any("there is no such folder of rules" in text for text in texts)
    assert any("mine.yaml:7:17: mine: caused_by: there is no rule 'nobody'" in t for t in texts)
    assert any("no rule is called 'nothing'" in text for text in texts)


def test_an_own_rule_that_lacks_a_label_others_go_by_is_named_itself(tmp_path) -> None:
    """`node_down` is the cause of many rules by node; one of the whole fleet cannot be."""
    write(tmp_path, "node_down")
    load_rule_set([tmp_path])
    mine = tmp_path / "mine.yaml"
    mine.write_text(mine.read_text().replace("labels: [node]", "labels: [rack]"))
    with pytest.raises(RuleFileError) as caught:
        load_rule_set([tmp_path])
    (problem,) = caught.value.problems
    assert str(problem).startswith(
        f"{mine}:4:13: node_down: it replaces the built-in rule, so it needs the label 'node', by which it is the cause"
    )
    assert "gpu_idle_held" in problem.message
    assert "disable the built-in one in overrides.yaml" in problem.message
