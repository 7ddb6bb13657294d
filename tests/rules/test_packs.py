"""The built-in rules: every case of every `*.test.yaml` beside them, and what all must have."""

import re
from pathlib import Path

import pytest

from gpuwarden.diagnosis import INPUT_BOUND, Bottleneck
from gpuwarden_rules.definition.language import builtin_paths, builtin_rules
from gpuwarden_rules.testing import Case, load_cases, run_case

FILES = [path.with_name(path.stem + ".test.yaml") for path in builtin_paths()]


def cases() -> list[Case]:
    return [case for path in FILES for case in load_cases(path)]


@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{Path(c.path).stem}:{c.name}")
def test_case(case: Case) -> None:
    result = run_case(case)
    assert result.passed, "\n".join(result.failures)


def test_every_rule_has_a_firing_and_a_quiet_case() -> None:
    firing, quiet = set(), set()
    for case in cases():
        for expectation in case.expectations:
            (firing if expectation.alerts else quiet).add(expectation.rule)
    names = {rule.name for rule in builtin_rules()}
    assert firing == names
    assert quiet == names


@pytest.mark.parametrize("rule", builtin_rules(), ids=lambda rule: rule.name)
def test_a_rule_says_nothing_over_empty_tables(rule, database, clock) -> None:
    assert database.run(rule.sql, rule.bindings(clock.now())).rows == []


def test_the_data_loader_rule_speaks_of_all_classes_that_wait_for_data() -> None:
    (rule,) = [rule for rule in builtin_rules() if rule.name == "gpu_data_loader_bound"]
    named = set(re.findall(r"'([a-z_]+)'", rule.sql)) & {b.value for b in Bottleneck}
    assert named == {b.value for b in INPUT_BOUND} | {Bottleneck.UNKNOWN.value}
