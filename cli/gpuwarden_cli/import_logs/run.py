"""Runs `gpuwarden import`: reads files, sends their rows, prints the summary."""

import argparse
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuwarden.clock import Clock, SystemClock, from_ms, to_ms
from gpuwarden.wire import AHEAD_S_MAX
from gpuwarden_cli.import_logs.delivery import Delivery
from gpuwarden_cli.import_logs.report import FileReport, Totals, lines
from gpuwarden_cli.progress import progress
from gpuwarden_client.http import CallError, collector_url
from gpuwarden_importing.batches import Batcher, ImportBatch
from gpuwarden_importing.detect import read
from gpuwarden_importing.instants import Instants
from gpuwarden_importing.model import Origin, TableRow, UnreadableError
from gpuwarden_importing.sources import DAMAGE, STDIN, found, opened


def run(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Import the files; 1 when one, or a part of it, could not be read. Raises CallError, ValueError."""
    clock = clock or SystemClock()
    now_ms = to_ms(clock.now())
    origin = _origin(args, now_ms)
    try:
        paths = found(args.files)
    except UnreadableError as error:
        raise ValueError(str(error)) from error
    url = (args.url or collector_url()).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise CallError(f"{url} is not a URL; it must start with http://")
    delivery = Delivery(url)
    batcher = Batcher(now_ms + AHEAD_S_MAX * 1000)
    reports = [FileReport("standard input" if path == STDIN else str(path)) for path in paths]
    verb = "reading" if args.dry_run else "importing"
    with progress(verb, len(paths)) as bar, ThreadPoolExecutor(1, "deliver") as thread:
        sending = _Sending(thread, delivery, is_dry=args.dry_run)
        for number, (path, report) in enumerate(zip(paths, reports, strict=True)):
            bar.done = number
            for batch in _batches_of(path, report, origin, batcher, now_ms):
                bar.text = f"{sum(one.rows for one in reports):,} rows  {report.name}"
                sending.take(batch)
        for batch in batcher.flush():
            sending.take(batch)
        sending.finish()
    totals = Totals(batcher, delivery.known, args.dry_run)
    for line in lines(reports, totals, is_verbose=args.verbose, now_ms=now_ms):
        print(line)
    # Other files in a folder are listed, but are not a failure.
    named = {str(path) for path in args.files} | {"standard input"}
    failed = any(report.trouble and (report.form or report.name in named) for report in reports)
    lost = any(report.tally.skipped for report in reports)
    return 1 if failed or lost or not any(report.form for report in reports) else 0


class _Sending:
    """Sends a batch in a thread while the next is read."""

    def __init__(self, thread: ThreadPoolExecutor, delivery: Delivery, *, is_dry: bool) -> None:
        self._thread = thread
        self._delivery = delivery
        self._is_dry = is_dry
        self._last: Future[None] | None = None

    def take(self, batch: ImportBatch) -> None:
        """Send a batch, after the one before. Raises CallError."""
        if not self._is_dry:
            self.finish()
            self._last = self._thread.submit(self._delivery.deliver, batch)

    def finish(self) -> None:
        """Wait for the last batch. Raises CallError."""
        if self._last is not None:
            self._last.result()


def _batches_of(
    path: Path, report: FileReport, origin: Origin, batcher: Batcher, now_ms: int
) -> Iterator[ImportBatch]:
    try:
        source = opened(path)
        report.form, rows = read(source, path, _of_file(origin, path, now_ms), report.tally)
        yield from batcher.add(_counted(rows, report), report.tally)
        report.trouble = source.trouble
    except UnreadableError as error:
        report.trouble = str(error)
    except DAMAGE as error:
        report.trouble = f"it is damaged, or was deleted, from here on: {error}"


def _counted(rows: Iterator[TableRow], report: FileReport) -> Iterator[TableRow]:
    for row in rows:
        report.rows += 1
        yield row


def _of_file(origin: Origin, path: Path, now_ms: int) -> Origin:
    if origin.at_ms is not None:
        return origin
    if path == STDIN:
        return replace(origin, at_ms=now_ms, at_source="now, when it was read")
    written_ms = int(path.stat().st_mtime * 1000)
    written = f"{from_ms(written_ms):%Y-%m-%d %H:%M:%S} UTC, when the file was written"
    return replace(origin, at_ms=written_ms, at_source=written)


def _origin(args: argparse.Namespace, now_ms: int) -> Origin:
    zone = _zone(args.timezone)
    at_ms = None
    if args.at is not None:
        try:
            at_ms = Instants(zone, now_ms=now_ms).parse(args.at)
        except ValueError as error:
            raise ValueError(f"--at {args.at}: {error}; such as 2026-07-14T09:00:00Z") from error
    return Origin(
        node=args.node,
        zone=zone,
        at_ms=at_ms,
        at_source=f"{args.at} (--at)",
        fields=_names(args.fields),
        table=args.table,
    )


def _names(said: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (said or "").split(",") if name.strip())


def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"--timezone {name}: there is no such zone; such as Europe/Berlin or UTC"
        ) from None
