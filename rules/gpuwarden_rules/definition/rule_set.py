"""Loads the rule set: the built-in pack, the operator's folders and overrides, checked together.

A folder has rule files (`*.yaml`), their tests (`*.test.yaml`, not read here), and optionally
`overrides.yaml`. A rule in a folder replaces the built-in rule of the same name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from gpuwarden_rules.definition.language import Rule, builtin_rules, load_all
from gpuwarden_rules.definition.overrides import FILE_NAME, Override, load_overrides
from gpuwarden_rules.definition.yaml_positions import FileProblem, RuleFileError


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules that run, and overrides of their parameters."""

    rules: tuple[Rule, ...]
    overrides: tuple[Override, ...] = ()


def load_rule_set(folders: Sequence[Path]) -> RuleSet:
    """The rule set that the built-in pack and these folders make. Raises RuleFileError with every problem."""
    files, override_files, problems = _files(folders)
    try:
        own = load_all(files)
    except RuleFileError as error:
        raise RuleFileError([*problems, *error.problems]) from error
    names = {rule.name for rule in own}
    rules = [rule for rule in builtin_rules() if rule.name not in names] + own
    problems += _lacking_labels(rules, names)
    problems += cause_problems(_known(rules, names))
    overrides: list[Override] = []
    for path in override_files:
        try:
            overrides += load_overrides(path, rules)
        except RuleFileError as error:
            problems += error.problems
    if problems:
        raise RuleFileError(problems)
    return RuleSet(tuple(rules), tuple(overrides))


def cause_problems(rules: Sequence[Rule]) -> list[FileProblem]:
    """Problems of `caused_by`: unknown rules, labels that the other rule lacks, cycles."""
    known = {rule.name: rule for rule in rules}
    problems = []
    for rule in rules:
        for name, equal in rule.caused_by.items():
            if name not in known:
                problems.append(_cause_problem(rule, name, f"there is no rule {name!r}"))
                continue
            lacking = [label for label in equal if label not in known[name].labels]
            if lacking:
                problems.append(_cause_problem(rule, name, f"{name} has no label {lacking[0]!r}"))
    try:
        TopologicalSorter({r.name: [*r.caused_by] for r in rules}).prepare()
    except CycleError as error:
        cycle = list(reversed(error.args[1]))
        way = " is caused by ".join(cycle)
        problems.append(_cause_problem(known[cycle[0]], cycle[1], f"a cycle has no root: {way}"))
    return problems


def _cause_problem(rule: Rule, cause: str, message: str) -> FileProblem:
    return rule.problem(f"caused_by.{cause}", f"caused_by: {message}")


def _lacking_labels(rules: Sequence[Rule], own: set[str]) -> list[FileProblem]:
    """A problem for each label that an operator's rule lacks, although it replaces a built-in rule that others
    name as their cause by this label."""
    replacing = {rule.name: rule for rule in rules if rule.name in own}
    lacking: dict[tuple[str, str], list[str]] = {}
    for rule in rules:
        for name, equal in rule.caused_by.items() if rule.name not in own else ():
            if name in replacing:
                for label in set(equal) - set(replacing[name].labels):
                    lacking.setdefault((name, label), []).append(rule.name)
    return [
        replacing[name].problem(
            "labels",
            f"it replaces the built-in rule, so it needs the label {label!r}, by which it is the cause of"
            f" {', '.join(following)}. Add that label, or give the rule a name of its own and disable the"
            f" built-in one in {FILE_NAME}",
        )
        for (name, label), following in sorted(lacking.items())
    ]


def _known(rules: Iterable[Rule], own: set[str]) -> list[Rule]:
    """The rules for `cause_problems`, built-in ones without causes that do not exist here.

    A built-in rule may name a cause that this installation lacks: tests check the pack itself. An
    operator's rule may not, since it would be a typing error. `_lacking_labels` reports labels that an
    operator's rule lacks.
    """
    found = list(rules)
    labels = {rule.name: set(rule.labels) for rule in found}

    def has(name: str, equal: tuple[str, ...]) -> bool:
        return name in labels and (name not in own or labels[name] >= set(equal))

    return [
        rule
        if rule.name in own
        else replace(rule, caused_by={k: v for k, v in rule.caused_by.items() if has(k, v)})
        for rule in found
    ]


def _files(folders: Sequence[Path]) -> tuple[list[Path], list[Path], list[FileProblem]]:
    rules: list[Path] = []
    overrides: list[Path] = []
    problems = []
    for folder in folders:
        if not folder.is_dir():
            problems.append(FileProblem(str(folder), 1, 1, "there is no such folder of rules"))
        for path in sorted(folder.glob("*.yaml")):
            if path.name == FILE_NAME:
                overrides.append(path)
            elif not path.name.endswith(".test.yaml"):
                rules.append(path)
    return rules, overrides, problems
