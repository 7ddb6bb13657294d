"""Shows what GPUs cost owned and rented, for `gpuwarden report own`. `gpuwarden.own` computes it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpuwarden.own import DAYS_A_MONTH, RENT_KINDS, OwnCase
from gpuwarden_cli.output import render, terminal_width

_LISTS = ("sentences", "missing")


def table(cases: Sequence[OwnCase]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Columns and rows for CSV: numbers and texts."""
    records = [
        {
            name: " ".join(value) if name in _LISTS else value
            for name, value in case.record().items()
        }
        for case in cases
    ]
    return list(records[0]), [list(record.values()) for record in records]


def screen(cases: Sequence[OwnCase], since: datetime, until: datetime) -> str:
    """A table, a sentence for each way to rent, what is assumed, and what is not known."""
    kind = " (simulated)" if all(case.use.simulated for case in cases) else ""
    lines = [f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC{kind}; dollars a month\n"]
    heads = ["model", "GPUs", "in use at once", "h/day", "in use", "busy", "owned", "now", "own"]
    rows = [_row(case) for case in cases]
    lines.append(render([*heads, *RENT_KINDS.values()], rows, "table", width=terminal_width()))
    for case in cases:
        lines += [f"{sentence}\n" for sentence in case.sentences]
        if case.parts:
            lines.append(f"  Owning one: {case.parts}.\n")
        if case.use.days < DAYS_A_MONTH / 2:
            lines.append(f"  Months are counted from {case.use.days:.1f} days of data.\n")
        lines += [f"  {missing}\n" for missing in case.missing]
    return "".join(lines)


def _row(case: OwnCase) -> Sequence[Any]:
    use = case.use
    rents = {rent.kind: rent.usd_a_month for rent in case.rents}
    hours = (use.gpu_hours, use.used_hours, use.busy_hours, use.owned_hours)
    dollars = (use.usd_a_month, case.own_usd_a_month, *(rents.get(kind) for kind in RENT_KINDS))
    return [
        use.model,
        use.gpus,
        use.needed,
        *(round(value / use.days, 1) for value in hours),
        *(None if usd is None else round(usd) for usd in dollars),
    ]
