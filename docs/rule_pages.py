"""Makes a page for each built-in rule, and their index, from the pack."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpuwarden_rules.definition.language import Rule, RulePage, builtin_paths, load
from gpuwarden_rules.prometheus_file import alerting_rules

_FIELD = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_CODE_OR_LINK = re.compile(r"(`[^`]*`|\[[^\]]*\]\([^)]*\))")
_STAND_INS = {
    "culprit": "the process",
    "default_watts": "WATTS",
    "reset_command": "nvidia-smi --gpu-reset -i GPU",
    "serial": "SERIAL",
    "stop_with": "scancel JOB",
    "whom": "its owner",
}
"""What a page has in place of a value of an alert's remedy."""
_PACKS = "../../rules/gpuwarden_rules/packs"
_SPANS = (("for", "for_s"), ("keep_firing_for", "keep_firing_for_s"), ("warm_up", "warm_up_s"))
_GROUPS = {
    "idle": "Idle GPUs",
    "jobs": "Jobs",
    "work": "Slow work",
    "data_loader": "Waiting for data",
    "memory": "GPU memory",
    "throttling": "Throttling",
    "thermal": "Temperature",
    "clocks": "Limits and clocks",
    "health": "GPU health",
    "xid": "Xids",
    "interconnect": "Links and networks",
    "node": "Nodes and agents",
    "gpuwarden": "gpuwarden itself",
}


def rule_pages() -> dict[str, str]:
    """Text of every page by its path in the repository."""
    packs = {path: load(path) for path in builtin_paths()}
    names = frozenset(rule.name for rules in packs.values() for rule in rules)
    pages = {
        f"docs/rules/{rule.name}.md": "\n".join(_page(rule, path, raw, names)) + "\n"
        for path, rules in packs.items()
        for rule, raw in zip(rules, _raw(path), strict=True)
    }
    return pages | {"docs/rules/README.md": "\n".join(_index(packs)) + "\n"}


def _raw(path: Path) -> list[dict[str, Any]]:
    """The rules as they are written: spans as `10m`, not as seconds."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rules: list[dict[str, Any]] = yaml.load(path.read_text(), Loader=loader)["rules"]
    return rules


def _index(packs: Mapping[Path, Sequence[Rule]]) -> Iterator[str]:
    yield "# Built-in rules"
    yield "<!-- Made from the packs, as all pages of this folder, by `make docs`. -->"
    yield ""
    yield "[Rules](../rules.md) explains the language, and how to change or replace a rule. Where a page names"
    yield "`coverage_min`, that share of the window must have readings, else the rule says nothing."
    yield "A reading that is NULL begins no alert and ends none. Alerts of one cause are one"
    yield "[incident](../rules.md#incidents): its pack names what a rule follows from in `caused_by`."
    stems = {path.stem: path for path in packs}
    for stem in (*_GROUPS, *sorted(stems.keys() - _GROUPS.keys())):
        yield f"\n## {_GROUPS.get(stem, stem)}\n"
        for rule in packs[stems[stem]]:
            yield f"- [{rule.name}]({rule.name}.md), {rule.severity.value}: {_of(rule).title}"
    yield from _in_promql([rule for rules in packs.values() for rule in rules])


def _in_promql(rules: Sequence[Rule]) -> Iterator[str]:
    """Which rules Prometheus can have, and why it cannot have the others."""
    yield "\n## In Prometheus\n"
    yield _wrapped(
        "[Alerting rules for Prometheus](../exporter.md#alerting-rules) have these; those marked * with the"
        " names of dcgm-exporter, too:"
    )
    in_dcgm = {one.rule.name for one in alerting_rules(rules, "dcgm")}
    yield ""
    reasons: dict[str, list[str]] = {}
    for rule in rules:
        promql = rule.promql
        assert promql is not None, f"{rule.name} has neither `promql` nor a reason"
        if promql.reason:
            reasons.setdefault(promql.reason, []).append(rule.name)
        else:
            mark = " *" if rule.name in in_dcgm else ""
            less = f": {promql.differs}" if promql.differs else ""
            yield _wrapped(f"{rule.name}{mark}{less}", "- ")
    yield "\nNot these:\n"
    for reason, names in reasons.items():
        yield _wrapped(f"{', '.join(names)}: {reason}", "- ")


def _page(rule: Rule, path: Path, raw: Mapping[str, Any], names: frozenset[str]) -> Iterator[str]:
    page = _of(rule)

    def prose(text: str, lead: str = "") -> str:
        return _wrapped(_linked(text, names - {rule.name}), lead)

    yield f"# {rule.name}"
    yield ""
    file = f"[{path.name}]({_PACKS}/{path.name})"
    yield _wrapped(f"**{page.title}** ({rule.severity.value}, {file}).")
    if page.description:
        yield "\n" + prose(page.description)
    if page.checks:
        yield "\n" + prose(f"**Check:** {page.checks}")
    yield "\n" + prose(f"**Remedy:** {page.actions or _plain(str(rule.remedy))}")
    if page.quiet:
        yield "\n**Quiet:**\n"
        yield from (prose(text, "- ") for text in page.quiet)
    values = _values(rule, raw)
    rest = ", ".join(f"`{name}` {value}" for name, value in values if name not in page.sources)
    if not page.sources:
        yield "\n" + _wrapped(f"**Thresholds:** {rest}.")
        return
    yield "\n**Thresholds:**\n"
    yield from (
        prose(f"`{name}` {value}: {page.sources[name]}.", "- ")
        for name, value in values
        if name in page.sources
    )
    if rest:
        yield _wrapped(f"{rest}.", "- ")


def _wrapped(text: str, lead: str = "") -> str:
    return textwrap.fill(
        text,
        110,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _of(rule: Rule) -> RulePage:
    assert rule.page, f"{rule.name} has no `page`"
    return rule.page


def _values(rule: Rule, raw: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        *([("window", str(raw["window"]))] if "window" in raw else []),
        *(
            (name, f"{value:,}" if isinstance(value, int) else str(value))
            for name, value in (raw.get("params") or {}).items()
        ),
        *((key, f"`{' '.join(str(raw[key]).split())}`") for key in ("when", "until") if key in raw),
        *((name, str(raw[name])) for name, field in _SPANS if getattr(rule, field)),
    ]


def _plain(text: str) -> str:
    """The text of an alert with capitals where a value would stand: `-i {gpu}` as `-i GPU`."""

    def stand_in(match: re.Match[str]) -> str:
        _, many, plural = (match[2] or "").partition("|")
        return f"N {plural}" if many else _STAND_INS.get(match[1], match[1].upper())

    return _FIELD.sub(stand_in, text)


def _linked(text: str, names: frozenset[str]) -> str:
    """The text with links for the names of rules, but in code and other links."""

    def link(match: re.Match[str]) -> str:
        return f"[{match[0]}]({match[0]}.md)" if match[0] in names else match[0]

    parts = _CODE_OR_LINK.split(text)
    return "".join(part if n % 2 else re.sub(r"\w+", link, part) for n, part in enumerate(parts))
