"""Writes the table of names into `docs/exporter.md`, between its two markers: `python -m docs.exporter`."""

from pathlib import Path

from gpuwarden.metrics import METRICS
from gpuwarden_agent.exporter.health import COUNTS
from gpuwarden_agent.exporter.names import DCGM_TABLES, DCGM_XID, Exported, names_of

PAGE = Path(__file__).parent / "exporter.md"
BEGIN, END = "<!-- names: made by docs/exporter.py -->", "<!-- end of names -->"


def exporter_page() -> str:
    """The page with its table of names as the code has them."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{names_tables()}\n{END}{after}"


def names_tables() -> str:
    """Every name: metrics by table, then the agent's own."""
    lines = []
    for table in METRICS:
        lines += ["", f"### {table}", ""] if lines else [f"### {table}", ""]
        lines += _metric_lines(table)
    lines += ["", "### Xids, of events", "", "| own | kind | dcgm | dcgm49 |"]
    lines.append("| --- | --- | --- | --- |")
    dcgm = " | ".join(f"`{DCGM_XID[name_set]}`" for name_set in ("dcgm", "dcgm49"))
    lines.append(f"| `gpuwarden_gpu_xids_total` | counter | {dcgm} |")
    lines += ["", "### The agent itself", "", "| name | kind | by | meaning |"]
    lines.append("| --- | --- | --- | --- |")
    lines += [
        f"| `gpuwarden_agent_{c.name}` | {c.kind} | {c.label or ''} | {c.meaning} |" for c in COUNTS
    ]
    return "\n".join(lines) + "\n"


def _metric_lines(table: str) -> list[str]:
    old, new = ({e.columns: e for e in names_of(s, table)} for s in ("dcgm", "dcgm49"))
    own = {e.columns: e for e in names_of("own", table)}
    rates = [columns for columns in old if columns not in own or old[columns].is_rate]
    if table not in DCGM_TABLES:
        lines = ["| own | kind |", "| --- | --- |"]
        return lines + [f"| `{e.name}` | {e.kind} |" for e in own.values()]
    lines = [
        "| own | kind | dcgm | unit | dcgm49 | unit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for columns, e in own.items():
        both = () if columns in rates else (old.get(columns), new.get(columns))
        lines.append(f"| `{e.name}` | {e.kind} | {_dcgm_cells(*both)} |")
    for columns in rates:
        lines.append(f"| (a rate) | | {_dcgm_cells(old[columns], new[columns])} |")
    return lines


def _dcgm_cells(old: Exported | None = None, new: Exported | None = None) -> str:
    cells = [
        cell for e in (old, new) for cell in ((f"`{e.name}`", e.scale.unit) if e else ("", ""))
    ]
    return " | ".join(cells)


if __name__ == "__main__":
    PAGE.write_text(exporter_page())
