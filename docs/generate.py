"""Writes the pages that are made from code: tables, metrics, settings, commands, example TOML.

`make docs` writes them; `tests/test_docs.py` fails when one is not what the code says.
"""

import argparse
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import Any

from docs.generate_tables import NOTICE, metrics_page, nvml_lists, smi_names, tables_page
from docs.rule_pages import rule_pages

from gpuwarden.cookbook import questions
from gpuwarden.data_folder import table
from gpuwarden.diagnosis import MEANINGS
from gpuwarden.models import SIMULATED_ACCELERATORS
from gpuwarden.settings import default_of
from gpuwarden.sxids import SXID_ACTIONS, SXIDS
from gpuwarden.xids import ACTIONS, XIDS, XidInfo
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.main import parser
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.evaluation.unable import rules_of_gpus, unable
from gpuwarden_rules.prometheus_file import alerting_rules, rule_file
from gpuwarden_simulator.devices.vendors import SOURCES, source_of

ROOT = Path(__file__).parent.parent
WIDTH = 110
PARTS: dict[str, Any] = {"agent": AgentSettings, "collector": CollectorSettings}


def pages() -> dict[str, str]:
    """Text of every generated file by its path in the repository."""
    return {
        "docs/metrics.md": wrapped(metrics_page()),
        "docs/tables.md": wrapped(tables_page()),
        "docs/configure.md": wrapped(configure_page()),
        "docs/commands.md": wrapped(commands_page()),
        "docs/sql.md": _between("docs/sql.md", "cookbook", wrapped("\n".join(_cookbook()) + "\n")),
        "docs/store.md": _between("docs/store.md", "data folder", "\n".join([*table(), ""])),
        "docs/xids.md": xids_page(),
        "docs/diagnosis.md": diagnosis_page(),
        "docs/gpus.md": gpus_page(),
        "docs/migrate.md": _between(
            "docs/migrate.md", "nvidia_gpu_exporter", wrapped("\n".join(smi_names()) + "\n")
        ),
        **rule_pages(),
        "deploy/prometheus/gpuwarden.rules.yml": rule_file(alerting_rules(builtin_rules())),
        **{f"systemd/{part}.toml": example_toml(part) for part in PARTS},
    }


def wrapped(page: str) -> str:
    """The page with paragraphs and list items of at most WIDTH columns; code stays as it is."""
    text, *codes = re.split(r"^(```.*?^```\n)", page, flags=re.DOTALL | re.MULTILINE)
    rest = [code if at % 2 == 0 else _wrapped(code) for at, code in enumerate(codes)]
    return "".join([_wrapped(text), *rest])


def _wrapped(text: str) -> str:
    blocks: list[str] = []
    for line in text.split("\n"):
        stands_alone = not line or line.startswith(("|", "#", "<!--", "- "))
        if stands_alone or not blocks or not blocks[-1] or blocks[-1].startswith(("|", "#", "<")):
            blocks.append(line)
        else:
            blocks[-1] += f" {line}"
    return "\n".join(
        block if not block or block.startswith(("|", "#", "<")) else _filled(block)
        for block in blocks
    )


def _filled(block: str) -> str:
    indent = "  " if block.startswith("- ") else ""
    return textwrap.fill(
        block, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _cookbook() -> Iterator[str]:
    """Each question by topic, with its parameters and their defaults."""
    for topic, of in groupby(questions(), lambda one: one.topic):
        yield f"\n**{topic.capitalize()}**\n"
        for one in of:
            takes = ", ".join(f"`{p.name}={p.default}`" for p in one.parameters)
            yield f"- `{one.name}`: {one.title}" + (f"; {takes}" if takes else "")


def xids_page() -> str:
    page = _between("docs/xids.md", "catalogue", wrapped("\n".join(_xid_lists()) + "\n"))
    return _marked("docs/xids.md", page, "sxids", wrapped("\n".join(_sxid_lists()) + "\n"))


def _xid_lists() -> Iterator[str]:
    """The codes by NVIDIA's action; actions with the same severity and advice stand together.

    A row that departs from its action's severity or advice says so.
    """
    sections: dict[tuple[bool, str, str], list[XidInfo]] = {}
    for row in XIDS.values():
        usual = ACTIONS[row.action] if row.action else NOT_PUBLISHED
        sections.setdefault((row.action is not None, *usual), []).append(row)
    for (is_published, severity, remedy), rows in sections.items():
        actions = dict.fromkeys(row.action for row in rows if row.action)
        title = ", ".join(actions) if is_published else "No action published"
        yield f"\n### {title}\n\n**{severity}**: {remedy}.\n"
        codes: dict[str, list[str]] = {}
        for row in rows:
            codes.setdefault(_xid_text(row, severity, remedy), []).append(str(row.code))
        yield from (f"- {', '.join(numbers)}: {text}" for text, numbers in codes.items())


NOT_PUBLISHED = ("info", "nothing")
"""Severity and advice of a code for which NVIDIA names no action."""


def _xid_text(row: XidInfo, severity: str, remedy: str) -> str:
    text = re.sub(r"^(CE|NVDEC|NVENC|NVJPG|OFA)\d+", r"\1", row.meaning)  # one line for all engines
    if row.severity != severity:
        text += f" (**{row.severity}**)"
    if row.remedy == remedy:
        return text
    if row.remedy.startswith(f"{remedy}; "):
        return f"{text}. Also: {row.remedy.removeprefix(remedy + '; ')}"
    return f"{text}. To do: {row.remedy}"


def _sxid_lists() -> Iterator[str]:
    """The codes by action; those of `IGNORE` are the rest. Those of a fatal error are bold."""
    yield ""
    for action, (if_fatal, if_not) in SXID_ACTIONS.items():
        rows = [row for row in SXIDS.values() if row.action == action]
        fatal = _ranges([row.code for row in rows if row.is_fatal])
        other = _ranges([row.code for row in rows if not row.is_fatal])
        if action == "IGNORE":
            other = "the others"
        codes = ", ".join(part for part in (fatal and f"**{fatal}**", other) if part)
        remedy = if_fatal if if_fatal == if_not else f"{if_fatal}; not fatal: {if_not}"
        yield f"- {action}: {remedy} ({codes})"


def _ranges(codes: list[int]) -> str:
    """Ascending codes, with runs of them as "23001 to 23008"."""
    runs: list[list[int]] = []
    for code in codes:
        if runs and runs[-1][-1] == code - 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def diagnosis_page() -> str:
    return _between("docs/diagnosis.md", "classes", "\n".join(_diagnosis_tables()) + "\n")


def _diagnosis_tables() -> Iterator[str]:
    yield ""
    yield from (f"- `{b.value}`: {meaning}" for b, meaning in MEANINGS.items())


def _between(page: str, mark: str, made: str) -> str:
    """A page that is written by hand, except the text between its two marks."""
    return _marked(page, (ROOT / page).read_text(), mark, made)


def _marked(page: str, text: str, mark: str, made: str) -> str:
    head, start, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, tail = rest.partition(f"<!-- end of {mark} -->")
    assert end, f"{page} lacks the marks of {mark}"
    return head + start + made + end + tail


def gpus_page() -> str:
    page = _between("docs/gpus.md", "readings", wrapped("\n".join(nvml_lists()) + "\n"))
    return _marked("docs/gpus.md", page, "rules", wrapped("\n".join(_rules_of_sources()) + "\n"))


def _rules_of_sources() -> Iterator[str]:
    """Rules that can judge devices of each source, by the columns that it tells."""
    rules = builtin_rules()
    yield ""
    for source in SOURCES:
        told = {"gpus": source.inventory, **source.tables}
        vendor = next(m.vendor for m in SIMULATED_ACCELERATORS if source_of(m) is source)
        lacking = {one.rule.name for one in unable(rules, vendor, told)}
        able = [rule.name for rule in rules_of_gpus(rules) if rule.name not in lacking]
        yield f"- {source.backend}: " + ", ".join(f"`{name}`" for name in sorted(able))


def configure_page() -> str:
    lines = [
        "# Settings",
        NOTICE,
        "",
        "Defaults < TOML file (`--config FILE`) < environment < flags. The variable of a setting is its name in capitals",
        "after `GPUWARDEN_AGENT_` or `GPUWARDEN_COLLECTOR_`: `GPUWARDEN_AGENT_NODE`. An unknown key is an error that names",
        "the known ones. `gpuwarden agent config` and `gpuwarden collector config` show every value in force and where it",
        "came from. In brackets: the default. A change needs a restart, except for what [a reload](operate.md#change-settings) takes up.",
        "",
        "`GPUWARDEN_URL` is the collector that commands ask (and `agent run`, where no setting names one); default:",
        "`http://127.0.0.1:8750`.",
    ]
    for part, cls in PARTS.items():
        lines += ["", f"## {part}", ""]
        for f in fields(cls):
            shown = _toml_value(default_of(f)) or "none"
            if f.name == "node":
                shown = "the hostname"
            meaning = f.metadata["meaning"]
            if f.metadata["choices"]:
                meaning += f" One of {', '.join(f.metadata['choices'])}."
            lines.append(f"- `{f.name}` (`{shown}`): {meaning}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str | None:
    """A value as TOML; None has none."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value}"
        case tuple():
            return json.dumps(list(value))
        case dict():
            return "{ " + ", ".join(f'"{k}" = {_toml_value(v)}' for k, v in value.items()) + " }"
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def example_toml(part: str) -> str:
    """Every setting of a part with its default, commented out."""
    lines = [
        f"# Settings of the gpuwarden {part}: /etc/gpuwarden/{part}.toml. Each line shows the default;",
        "# remove the # to change one. Made by docs/generate.py.",
    ]
    tables = []
    for f in fields(PARTS[part]):
        default = default_of(f)
        lines_here = tables if isinstance(default, dict) else lines
        lines_here += ["", f"# {f.metadata['meaning']}"]
        if isinstance(default, dict):
            lines_here.append(f"# [{f.name}]")
        elif f.name == "node":
            lines_here.append('# node = "the hostname"')
        else:
            empty = '""'
            lines_here.append(f"# {f.name} = {_toml_value(default) or empty}")
    return "\n".join(lines + tables) + "\n"


Options = dict[str, str]
"""Help by how an option or argument is written."""


def commands_page() -> str:
    """Every command with what is its own; what many commands share is written once."""
    commands = {name: (sub, _options(sub)) for name, sub in command_parsers()}
    uses = Counter(item for _, options in commands.values() for item in options.items())
    shared = {item for item, count in uses.items() if count >= SHARED_BY}
    sets = [tuple(i for i in options.items() if i in shared) for _, options in commands.values()]
    agent = min((s for s in sets if len(s) > AGENT_OPTIONS), key=len)
    lines = [
        "# Commands",
        NOTICE,
        "",
        "Exit codes: 0 success, 1 a problem was found, 2 the call was wrong, 78 a setting is wrong. Every command has `--help`.",
        "",
        "## Options of many commands",
        "",
        "A command names those that it has at its end. **Agent options**:",
        "",
        *(f"- `{option}`: {text}" for option, text in agent),
        "",
        "Others:",
        "",
        *(f"- `{option}`: {text}" for option, text in uses if (option, text) in shared - {*agent}),
    ]
    for (name, (sub, options)), used in zip(commands.items(), sets, strict=True):
        has_agent = set(agent) <= set(used)
        also = ["agent options"] if has_agent else []
        also += [f"`{o.split()[0]}`" for o, t in used if not has_agent or (o, t) not in agent]
        text = [sub.description.strip()] if sub.description else []
        text += [f"Also: {', '.join(also)}."] if also else []
        lines += ["", f"## {name}", "", " ".join(text)]
        own = [f"- `{o}`: {text}" for o, text in options.items() if (o, text) not in shared]
        lines += ["", *own] if own else []
    return "\n".join(lines) + "\n"


AGENT_OPTIONS = 6
"""More shared options than this are those of the agent's commands."""
SHARED_BY = 3
"""An option with the same help in this number of commands is in the list of shared ones."""


def _options(sub: argparse.ArgumentParser) -> Options:
    """Arguments and options as they are written, with their help."""
    options = {}
    for action in sub._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        words = "|".join(action.option_strings)
        value = action.metavar or (
            "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
        )
        if not value and action.nargs != 0:
            value = action.dest.upper()
        text = (action.help or "").replace("%%", "%") % {"default": action.default}
        options[f"{words} {value}".strip()] = text.strip() or "required"
    return options


def command_parsers() -> list[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, by its whole name."""
    return list(_commands(parser(), "gpuwarden"))


def _commands(
    top: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, with its parser."""
    groups = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield name, top
    for group in groups:
        for word, sub in group.choices.items():
            yield from _commands(sub, f"{name} {word}")


def main() -> None:
    for name, text in pages().items():
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
