"""Reads the text of a rule and of its test cases from their files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from yaml.nodes import CollectionNode, MappingNode, Node, SequenceNode

from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.yaml_positions import (
    TEST_SUFFIX,
    RuleFileError,
    YamlReader,
    read_text,
)

"""Ending of a file of cases; the rules are in the file of the same name without `.test`."""


@dataclass(frozen=True, slots=True)
class CaseSource:
    """A test case of a rule, with its YAML."""

    name: str
    fires: bool
    """Whether the case expects the rule to fire."""
    text: str


def rule_source(rule: Rule) -> str:
    """The rule's YAML; empty where its file was deleted or changed."""
    for node, fields, text in _items(Path(rule.path), "rules"):
        if _value(fields.get("name")) == rule.name:
            return _slice(text, node)
    return ""


def case_sources(rule: Rule) -> list[CaseSource]:
    """The test cases of the rule; none where it has no test file."""
    path = Path(rule.path)
    found = []
    for node, fields, text in _items(path.with_name(path.stem + TEST_SUFFIX), "cases"):
        expected = [dict(_fields(item)) for item in _list(fields.get("expect"))]
        own = [one for one in expected if _value(one.get("rule")) == rule.name]
        if own:
            fires = any("firing" in one for one in own)
            found.append(CaseSource(_value(fields.get("name")), fires, _slice(text, node)))
    return found


def _items(path: Path, key: str) -> Iterator[tuple[Node, dict[str, Node], str]]:
    try:
        text = read_text(path)
    except RuleFileError:
        return
    root = YamlReader(str(path), text).root()
    for item in _list(dict(_fields(root)).get(key)):
        yield item, dict(_fields(item)), text


def _fields(node: Node | None) -> Iterator[tuple[str, Node]]:
    if isinstance(node, MappingNode):
        for key, value in node.value:
            yield str(key.value), value


def _list(node: Node | None) -> list[Node]:
    return list(node.value) if isinstance(node, SequenceNode) else []


def _value(node: Node | None) -> str:
    return str(node.value) if node is not None else ""


def _slice(text: str, node: Node) -> str:
    """The lines of an item of a list, without its indentation."""
    first, last = node.start_mark, node.end_mark
    # A block ends where the next one begins.
    is_flow = isinstance(node, CollectionNode) and bool(node.flow_style)
    lines = text.splitlines()[first.line : last.line + is_flow]
    rest = [line.removeprefix(" " * first.column) for line in lines[1:]]
    return "\n".join([lines[0][first.column :], *rest]).rstrip()
