"""The summary: short, and nothing left out is unsaid."""

from collections import Counter

from gpuwarden_cli.import_logs.report import FileReport, Totals, lines
from gpuwarden_importing.batches import Batcher
from gpuwarden_importing.model import ImportTally

DAY_MS = 86_400_000


def said(*, is_dry=False, is_verbose=False, known=0) -> str:
    batcher, tally = Batcher(100 * DAY_MS), ImportTally()
    row = {"ts": 99 * DAY_MS, "node": "n1", "gpu_uuid": "GPU-1", "util_percent": 5.0}
    rows = [row, row | {"ts": 99 * DAY_MS + 5000}]
    list(batcher.add([("gpu_samples", row) for row in rows], tally))
    tally.skip("other text", 7, 3)
    tally.note("timestamps are taken as UTC")
    tally.unmapped.update({f"field{n}": 2 for n in range(12)})
    file = FileReport("smi.csv", "nvidia-smi CSV", 2, "", tally)
    totals = Totals(batcher, Counter(gpu_samples=known), is_dry)
    return "\n".join(lines([file], totals, is_verbose=is_verbose, now_ms=100 * DAY_MS))


def test_it_says_rows_gpus_span_and_what_was_left_out() -> None:
    text = said(known=1)
    assert "smi.csv: nvidia-smi CSV, 2 rows" in text
    assert "skipped: other text (3, first in line 7)" in text
    assert "timestamps are taken as UTC" in text
    assert "gpu_samples  1       1" in text
    assert "1 GPU of n1, 1970-04-10 00:00:00 to 1970-04-10 00:00:05 UTC" in text
    assert "keep_samples_days" not in text


def test_many_fields_are_counted_and_named_when_asked() -> None:
    assert "and 4 more (--verbose names them)" in said()
    assert all(f"field{n} (2)" in said(is_verbose=True) for n in range(12))


def test_nothing_is_said_to_be_nothing() -> None:
    totals = Totals(Batcher(0), Counter(), False)
    assert list(lines([], totals)) == ["nothing to import"]


def test_a_log_with_less_than_a_reading_a_minute_is_said_to_be_one() -> None:
    def told(seconds: int, readings: int = 9) -> str:
        batcher = Batcher(100 * DAY_MS)
        for n in range(readings):  # as a reader of one reading at a time gives them
            block = [
                {"ts": 90 * DAY_MS + 1000 * seconds * n, "node": "n1", "gpu_uuid": f"GPU-{gpu}", "util_percent": 5.0}
                for gpu in range(2)
            ]  # fmt: skip
            list(batcher.add([("gpu_samples", row) for row in block], ImportTally()))
        return "\n".join(lines([], Totals(batcher, Counter(), False)))

    assert "a reading every 5 min: in `waste` each counts until the next" in told(300)
    assert "a reading every 30 min: in `waste` each counts for 15 minutes, and" in told(1800)
    assert "a reading" not in told(60)
    assert "a reading" not in told(300, readings=1)
