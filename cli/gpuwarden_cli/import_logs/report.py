"""Prints the summary of an import: rows, GPUs, span, what was assumed and what was skipped."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpuwarden.clock import from_ms
from gpuwarden.durations import readable
from gpuwarden.waste import SPARSE_MAX_MINUTES
from gpuwarden_cli.output import render
from gpuwarden_importing.batches import Batcher
from gpuwarden_importing.model import ImportTally

FIELDS_SHOWN = 8
OLD_DAYS = 14
"""Default retention of samples."""


@dataclass(slots=True)
class FileReport:
    """Result of one file."""

    name: str
    form: str = ""
    rows: int = 0
    trouble: str = ""
    """Why it was not read, or not completely."""
    tally: ImportTally = field(default_factory=ImportTally)


@dataclass(frozen=True, slots=True)
class Totals:
    """Results of all files."""

    batcher: Batcher
    known: Counter[str]
    """Rows by table that the collector had before."""
    is_dry: bool


def lines(
    files: Sequence[FileReport], totals: Totals, *, is_verbose: bool = False, now_ms: int = 0
) -> Iterator[str]:
    """Lines of the summary."""
    for file in files:
        if file.trouble:
            yield f"{file.name}: {file.trouble}"
        if file.form:
            yield f"{file.name}: {file.form}, {file.rows:,} rows"
        yield from _notes(file.tally, is_verbose=is_verbose)
    batcher = totals.batcher
    # The last line has the numbers of nodes and GPUs.
    tables = [n for n, count in batcher.rows.items() if count and n not in ("nodes", "gpus")]
    if tables:
        word = "rows" if totals.is_dry else "stored"
        columns = ["table", word] if totals.is_dry else ["table", word, "there before"]
        rows = []
        for name in tables:
            known = totals.known[name]
            row: list[object] = [name, f"{batcher.rows[name] - known:,}"]
            rows.append(row if totals.is_dry else [*row, f"{known:,}"])
        yield ""
        yield render(columns, rows, "table").rstrip("\n")
        yield ""
    yield from _span(totals, now_ms)


def _notes(tally: ImportTally, *, is_verbose: bool) -> Iterator[str]:
    for note in tally.notes:
        yield f"  {note}"
    for word, counts in (("skipped", tally.skipped), ("ignored", tally.ignored)):
        for reason, skipped in sorted(counts.items(), key=lambda each: -each[1].count):
            where = f", first in line {skipped.line:,}" if skipped.line else ""
            yield f"  {word}: {reason} ({skipped.count:,}{where})"
    if not tally.unmapped:
        return
    named = [f"{name} ({count:,})" for name, count in sorted(tally.unmapped.items())]
    more = len(named) - FIELDS_SHOWN
    if is_verbose or more <= 1:
        shown = ", ".join(named)
    else:
        shown = f"{', '.join(named[:FIELDS_SHOWN])} and {more} more (--verbose names them)"
    yield f"  no column for: {shown}"


def _span(totals: Totals, now_ms: int) -> Iterator[str]:
    batcher = totals.batcher
    if not sum(batcher.rows.values()):
        yield "nothing to import"
        return
    nodes = ", ".join(sorted(map(str, batcher.nodes))[:4]) + (
        " ..." if len(batcher.nodes) > 4 else ""
    )
    gpus = f"{len(batcher.gpus):,} GPU{'' if len(batcher.gpus) == 1 else 's'}"
    line = f"{gpus} of {nodes}"
    if batcher.first_ms is not None and batcher.last_ms is not None:
        line += f", {_time(batcher.first_ms)} to {_time(batcher.last_ms)} UTC"
    yield f"{line}{'; nothing was sent (--dry-run)' if totals.is_dry else ''}"
    if (pace_s := batcher.pace_s) is not None and pace_s > 60:
        yield _sparse(pace_s)
    if batcher.first_ms is not None and now_ms - batcher.first_ms > OLD_DAYS * 86_400_000:
        yield (
            f"the collector deletes rows older than {OLD_DAYS} days, unless its keep_samples_days is more"
        )


def _sparse(pace_s: int) -> str:
    """How `waste` counts a log with less than one reading a minute."""
    if pace_s <= SPARSE_MAX_MINUTES * 60:
        return f"a reading every {readable(pace_s)}: in `waste` each counts until the next"
    return (
        f"a reading every {readable(pace_s)}: in `waste` each counts for {SPARSE_MAX_MINUTES} minutes,"
        " and the time until the next is in no report"
    )


def _time(ts_ms: int) -> str:
    return f"{from_ms(ts_ms):%Y-%m-%d %H:%M:%S}"
