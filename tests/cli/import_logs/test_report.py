"""The summary: short, and nothing left out is unsaid."""

from collections import Counter

from gpuwarden_cli.import_logs.report import Totals, lines
from gpuwarden_importing.batches import Batcher
from gpuwarden_importing.model import ImportTally

DAY_MS = 86_400_000


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
