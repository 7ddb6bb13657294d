"""Writes the pages that are made from code: metrics, tables, settings, commands, example TOML.

`make docs` writes them; `tests/test_docs.py` fails when one is not what the code says.
"""

import argparse
import io
import json
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

from docs.exporter import exporter_page
from docs.rule_pages import rule_pages

from gpuwarden.diagnosis import MEANINGS
from gpuwarden.metrics import METRICS, Metric, Type
from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import INVENTORY_EXTRA, TABLES, WIRE_TABLES, views_sql
from gpuwarden.settings import default_of
from gpuwarden.table import Column, Table
from gpuwarden.xids import xid_table
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.main import parser
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_rules.diagnosis.features import Features
from gpuwarden_rules.diagnosis.thresholds import Thresholds

ROOT = Path(__file__).parent.parent
NOTICE = (
    "<!-- Made by docs/generate.py: edit the code that it is made from, then run `make docs`. -->"
)
PARTS: dict[str, Any] = {"agent": AgentSettings, "collector": CollectorSettings}


def pages() -> dict[str, str]:
    """Text of every generated file by its path in the repository."""
    return {
        "docs/metrics.md": metrics_page(),
        "docs/tables.md": tables_page(),
        "docs/configure.md": configure_page(),
        "docs/commands.md": commands_page(),
        "docs/exporter.md": exporter_page(),
        "docs/xids.md": xids_page(),
        "docs/wire.md": wire_page(),
        "docs/diagnosis.md": diagnosis_page(),
        **rule_pages(),
        **{f"systemd/{part}.toml": example_toml(part) for part in PARTS},
    }


def metrics_page() -> str:
    lines = [
        "# Metrics",
        NOTICE,
        "",
        "One row per metric of the catalogue (`contract/gpuwarden/metrics.py`). The last part of a name is its",
        "unit; `_total` marks a counter, of which only differences mean something. What a device cannot",
        'give is NULL, never 0. "FI n" is field id n of `nvmlDeviceGetFieldValues`. The DCGM names are',
        "those of dcgm-exporter up to 4.8 and since 4.9.",
    ]
    for table, metrics in METRICS.items():
        lines += [
            "",
            f"## {table}",
            "",
            "| metric | unit | kind | every | meaning | source | DCGM |",
        ]
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        lines += [_metric_row(metric) for metric in metrics]
    return "\n".join(lines) + "\n"


def _metric_row(m: Metric) -> str:
    dcgm = " / ".join(f"`{name}`" for name in (m.dcgm, m.dcgm_49) if name)
    cells = (f"`{m.name}`", m.unit, m.kind, f"{m.cadence_s} s", m.meaning, m.source, dcgm)
    return "| " + " | ".join(cells) + " |"


def xids_page() -> str:
    return _between("docs/xids.md", "catalogue", xid_table())


def diagnosis_page() -> str:
    return _between("docs/diagnosis.md", "features", "\n".join(_diagnosis_tables()) + "\n")


def _diagnosis_tables() -> Iterator[str]:
    yield "\n### Classes\n"
    yield "| class | meaning |"
    yield "| --- | --- |"
    yield from (f"| `{b.value}` | {meaning} |" for b, meaning in MEANINGS.items())
    yield "\n### Features\n"
    yield from (f"- `{f.name}`: {f.metadata['words']}" for f in fields(Features))
    yield "\n### Thresholds\n"
    values = ", ".join(f"`{t.name}` {t.default:,g}" for t in fields(Thresholds))
    yield textwrap.fill(f"{values}.", 110, break_long_words=False)


def wire_page() -> str:
    return _between("docs/wire.md", "tables", "\n".join(_wire_tables()))


def _between(page: str, mark: str, made: str) -> str:
    """A page that is written by hand but for what stands between its two marks."""
    head, start, rest = (ROOT / page).read_text().partition(f"<!-- {mark} -->\n")
    _, end, tail = rest.partition(f"<!-- end of {mark} -->")
    assert end, f"{page} lacks the marks of {mark}"
    return head + start + made + end + tail


def _wire_tables() -> Iterator[str]:
    for table in WIRE_TABLES.values():
        keys = ", ".join(f"`{name}`" for name in table.key)
        yield f"\n### `{table.name}`\n"
        yield f"One row per {table.row}. Key: {keys}.\n"
        yield "| column | Arrow type | required | limits | meaning |"
        yield "| --- | --- | --- | --- | --- |"
        for c in table.columns:
            required = "yes" if c.required else ""
            cells = (f"`{c.name}`", _ARROW[c.type], required, _limits(c.limits), c.meaning)
            yield "| " + " | ".join(cells) + " |"
    yield ""


_ARROW = {t: t.value for t in Type} | {
    Type.TIMESTAMP: "timestamp[ms]",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
}


def _limits(limits: tuple[float, float] | None) -> str:
    if limits is None:
        return ""
    low, high = limits
    return f"at least {low:g}" if high == float("inf") else f"{low:g} to {high:g}"


def tables_page() -> str:
    lines = [
        "# Tables and views",
        NOTICE,
        "",
        "What `gpuwarden sql`, rules and dashboards query. Names, types and units are a promise. Time is UTC.",
        "Sample tables carry a row per key, each once, whatever failed on the way. [Rollups](rollups.md) summarise",
        "them by minute and hour.",
    ]
    for table in TABLES.values():
        lines += [
            "",
            f"## {table.name}",
            "",
            f"One row per {table.row}; key {', '.join(table.key)}.",
            "",
        ]
        minutes = ROLLUPS[table.name].made_of if table.name in ROLLUPS else None
        if minutes is not None:
            lines.append(f"The columns of [{minutes}](#{minutes}), by hour: [how](rollups.md).")
            continue
        lines += ["| column | type | | meaning |", "| --- | --- | --- | --- |"]
        lines += [_column_row(column) for column in _all_columns(table)]
    lines += ["", "## Views", "", "```sql", views_sql().strip(), "```"]
    return "\n".join(lines) + "\n"


def _all_columns(table: Table) -> Iterator[Column]:
    yield from table.columns
    yield from INVENTORY_EXTRA.get(table.name, ())


def _column_row(c: Column) -> str:
    return f"| `{c.name}` | {c.type.value} | {'required' if c.required else ''} | {c.meaning} |"


def configure_page() -> str:
    lines = [
        "# Settings",
        NOTICE,
        "",
        "Defaults < TOML file (`--config FILE`) < environment < flags. An unknown key is an error that names the",
        "known ones. `gpuwarden agent config` and `gpuwarden collector config` show every value in force and",
        "where it came from. A change needs a restart; [operate](operate.md#change-settings) names what a reload takes up.",
        "",
        "`GPUWARDEN_URL` names the collector for the commands that ask one (and for `agent run`, when nothing",
        "else does); by default `http://127.0.0.1:8750`.",
    ]
    for part, cls in PARTS.items():
        lines += ["", f"## {part}", ""]
        lines += ["| setting | default | environment | meaning |", "| --- | --- | --- | --- |"]
        for f in fields(cls):
            shown = _toml_value(default_of(f)) or "none"
            if f.name == "node":
                shown = "the hostname"
            meaning = f.metadata["meaning"]
            if f.metadata["choices"]:
                meaning += f" One of {', '.join(f.metadata['choices'])}."
            variable = f"GPUWARDEN_{part.upper()}_{f.name.upper()}"
            lines.append(f"| `{f.name}` | `{shown}` | `{variable}` | {meaning} |")
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


def commands_page() -> str:
    lines = [
        "# Commands",
        NOTICE,
        "",
        "Exit codes: 0 success, 1 a problem was found, 2 the call was wrong.",
    ]
    for name, sub in _commands(parser(), "gpuwarden"):
        lines += ["", f"## {name}", "", "```", _help_of(sub), "```"]
    return "\n".join(lines) + "\n"


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


def _help_of(sub: argparse.ArgumentParser) -> str:
    """Help at a fixed width and in one layout, whatever the terminal and the Python."""
    sub.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    out = io.StringIO()
    with redirect_stdout(out):
        sub.print_help()
    return out.getvalue().strip()


def main() -> None:
    for name, text in pages().items():
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
