"""Answers of receivers are understood, and the pause after them grows."""

import pytest

from gpuwarden_rules.notify.receivers.http_receiver import outcome_of
from gpuwarden_rules.notify.receivers.receiver import (
    AFTER_S_MAX,
    BACKOFF_MAX_S,
    Delivered,
    DeliveryDelayed,
    DeliveryRefused,
    backoff_s,
    shortened,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (200, Delivered), (204, Delivered), (301, DeliveryDelayed), (400, DeliveryRefused), (401, DeliveryDelayed), (403, DeliveryDelayed),
        (404, DeliveryDelayed), (408, DeliveryDelayed), (413, DeliveryRefused), (422, DeliveryRefused), (429, DeliveryDelayed), (500, DeliveryDelayed),
        (503, DeliveryDelayed),
    ],
)  # fmt: skip
def test_only_answers_about_the_content_refuse_it(status, kind) -> None:
    assert isinstance(outcome_of(status, ""), kind)


def test_the_pause_that_a_receiver_asks_for_is_kept() -> None:
    assert outcome_of(429, "slow down", "120") == DeliveryDelayed("HTTP 429: slow down", 120)
    assert outcome_of(503, "", "Wed, 21 Oct 2026 07:28:00 GMT") == DeliveryDelayed("HTTP 503")


def test_pauses_grow_to_a_bound_with_jitter() -> None:
    assert [backoff_s(n, None, lambda: 1.0) for n in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert backoff_s(1, None, lambda: 0.0) == 0.5
    assert backoff_s(10_000, None, lambda: 1.0) == BACKOFF_MAX_S
    assert backoff_s(1, 90, lambda: 1.0) == 90
    assert backoff_s(1, 1e9, lambda: 1.0) == AFTER_S_MAX


def test_what_a_receiver_said_is_one_short_line() -> None:
    assert shortened("a\nb\x1b[31m  c") == "a b�[31m c"
    assert len(shortened("x" * 5000)) == 300
