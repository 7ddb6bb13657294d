"""A page of a node or a GPU begins with the worst that is known of it, and never with praise of what is not known."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuwarden_dashboards.read.place import PlaceNow

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


def place(**changed: Any) -> PlaceNow:
    """A GPU that is busy."""
    gpu = {"gpu_uuid": "GPU-1", "gpu": 0, "util_percent": 97.0, "silent": False}
    fields: dict[str, Any] = {
        "now": NOW, "node": "n1", "gpu": 0, "gpu_uuid": "GPU-1", "silent_since": None, "facts": [],
        "gpus": [gpu, {**gpu, "gpu_uuid": "GPU-2", "util_percent": 0.0}], "mig": [], "parent_gpu_uuid": None,
        "beside": [], "processes": [], "alerts": [],
    }  # fmt: skip
    return PlaceNow(**{**fields, **changed})


ALERT = {
    "severity": "critical", "summary": "GPU 0 is lost.", "remedy": "Reset it.", "began_at": NOW, "usd_per_hour": 3.0,
    "fingerprint": "f",
}  # fmt: skip
LOSS = {
    "gpu": 1, "bottleneck": "loader_workers", "summary": "Waits for data.", "advice": "More workers.",
    "usd_per_hour": 1.5, "began_at": NOW,
}  # fmt: skip
HEALTHY = {**LOSS, "summary": "Healthy.", "advice": None, "usd_per_hour": None}


@pytest.mark.parametrize(
    ("changed", "level", "word", "sentence"),
    [
        ({"silent_since": NOW - timedelta(minutes=5), "alerts": [ALERT]}, "warning", "Not reporting", "5 min ago"),
        ({"alerts": [ALERT, ALERT], "diagnoses": [LOSS]}, "critical", "Critical", "GPU 0 is lost. 1 more below."),
        ({"diagnoses": [LOSS, HEALTHY]}, "info", "Could be faster", "Waits for data."),
        ({"diagnoses": [HEALTHY]}, "good", "Well", "Healthy."),
        ({}, "good", "Busy", "A kernel runs on it"),
        ({"gpu_uuid": "GPU-2"}, "", "Idle", "Nothing runs on it"),
        ({"gpu_uuid": None}, "good", "Well", "1 of 2 GPUs are busy"),
        ({"gpu_uuid": None, "diagnoses": [LOSS]}, "info", "Could be faster", "GPU 1: Waits for data."),
        ({"gpu_uuid": None, "gpus": []}, "good", "Well", "No alert is firing."),
        ({"gpus": [{"gpu_uuid": "GPU-1", "util_percent": None}]}, "", "Not judged", "do not say"),
    ],
)  # fmt: skip
def test_the_worst_that_is_known_is_said(
    changed: dict[str, Any], level: str, word: str, sentence: str
) -> None:
    verdict = place(**changed).verdict
    assert (verdict.level, verdict.word) == (level, word)
    assert sentence in verdict.sentence
