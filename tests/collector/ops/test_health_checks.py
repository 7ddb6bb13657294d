"""A collector's health document becomes checks: each is proven by a document in which that is wrong."""

from typing import Any

import pytest

from gpuwarden import __version__
from gpuwarden.doctor import FAIL, OK, WARN, worst
from gpuwarden_collector.ingest.writer import QUEUE_BYTES_MAX
from gpuwarden_collector.ops.health_checks import health_checks

SAMPLE = {
    "ingest_lag_seconds": 3.2,
    "queue_bytes": 0,
    "clock_confirmed": True,
    "rules": 64,
    "rules_failing": None,
    "receivers_failing": None,
    "messages_waiting": 0,
}
WELL: dict[str, Any] = {
    "version": __version__,
    "sample": SAMPLE,
    "nodes": [{"nodes": 3, "silent": 0, "silent_names": None}],
    "versions": [{"version": __version__, "nodes": 3, "example": "n1"}],
    "coverage": [{"percent": 99.9, "nodes": 3, "worst": "n1", "worst_percent": 99.0}],
    "clocks": [{"nodes": 3, "ahead": 0, "ahead_s": -4.0, "example": "n1"}],
}


def sample(**change: Any) -> dict[str, Any]:
    return {"sample": SAMPLE | change}


def test_a_healthy_collector_passes_every_check() -> None:
    found = list(health_checks(WELL))
    assert worst(found) == OK
    assert {check.remedy for check in found} == {""}


@pytest.mark.parametrize(
    ("change", "name", "status", "says"),
    [
        ({"version": "0.0.9"}, "version", WARN, "0.0.9 runs"),
        (sample(ingest_lag_seconds=61.0), "lag", WARN, "61 s old"),
        (sample(ingest_lag_seconds=None), "lag", OK, "no rows came"),
        (sample(queue_bytes=QUEUE_BYTES_MAX), "lag", WARN, "wait for the writer"),
        (sample(clock_confirmed=False), "clock", WARN, "nothing is dropped by age"),
        (sample(rules=None), "rules", WARN, "none run"),
        (sample(rules_failing="gpu_lost"), "rules", FAIL, "gpu_lost"),
        ({"unjudged": "Not judged yet, since 12:00."}, "rules", WARN, "Not judged yet"),
        (sample(receivers_failing="chat, mail"), "notify", FAIL, "the last message to chat, mail failed"),
        (sample(messages_waiting=101), "notify", WARN, "101 messages wait"),
        (sample(messages_waiting=None), "notify", OK, "notifications are off"),
        ({"nodes": [{"nodes": 0, "silent": 0, "silent_names": None}]}, "agents", WARN, "no agent"),
        ({"nodes": [{"nodes": 3, "silent": 1, "silent_names": ["n2"]}]}, "agents", WARN, "n2"),
        ({"nodes": [{"nodes": 1, "silent": 1, "silent_names": ["n2"]}]}, "agents", FAIL, "1 of 1"),
        ({"versions": [{"version": "99.0.0", "nodes": 1, "example": "n7"}]}, "versions", WARN, "n7"),
        ({"versions": [{"version": "0.0.1", "nodes": 1, "example": "n7"}]}, "versions", OK, "0.0.1"),
        ({"versions": []}, "versions", OK, "none"),
        ({"coverage": [{"percent": 80.0, "nodes": 2, "worst": "n2", "worst_percent": 60.0}]}, "coverage", WARN, "n2 has 60 %"),
        ({"coverage": [{"percent": None, "nodes": 0, "worst": None, "worst_percent": None}]}, "coverage", OK, "no agent has reported"),
        ({"clocks": [{"nodes": 3, "ahead": 1, "ahead_s": 9.0, "example": "n2"}]}, "clock", WARN, "the clock of n2 is ahead"),
        ({"clocks": [{"nodes": 3, "ahead": 3, "ahead_s": 9.0, "example": "n2"}]}, "clock", WARN, "this clock is behind"),
        ({"clocks": [{"nodes": 0, "ahead": 0, "ahead_s": None, "example": None}]}, "clock", OK, "no samples of agents"),
        ({"clocks": "the query took longer than 10 s"}, "clock", WARN, "took longer"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change: dict[str, Any], name: str, status: str, says: str) -> None:
    found = {check.name: check for check in health_checks(WELL | change)}
    check = found[name]
    assert says in check.finding
    assert (check.status, bool(check.remedy)) == (status, status != OK)
    assert {n for n, c in found.items() if c.status != OK} <= {name}
