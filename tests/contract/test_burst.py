"""Requests for bursts in the header of an answer: what goes in comes out, and anything else is left out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.burst import (
    HEADER_BYTES_MAX,
    HZ_MAX,
    SECONDS_MAX,
    BurstError,
    BurstRequest,
    burst_of,
    bursts_header,
    bursts_of,
)

REQUESTS = st.builds(
    BurstRequest,
    id=st.text("0123456789abcdef", min_size=12, max_size=12),
    gpu_uuid=st.text(min_size=1, max_size=40),
    hz=st.floats(1, HZ_MAX),
    seconds=st.floats(1, SECONDS_MAX),
)


@given(st.lists(REQUESTS, max_size=8))
def test_requests_come_out_as_they_went_in(requests: list[BurstRequest]) -> None:
    header = bursts_header(requests)
    assert header.isascii()
    assert "\n" not in header
    assert bursts_of(header) == (requests if len(header) <= HEADER_BYTES_MAX else [])


@given(st.text() | st.binary().map(repr))
def test_no_text_breaks_the_agent(text: str) -> None:
    assert isinstance(bursts_of(text), list)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}",
        "[1]",
        '[{"id": "short", "gpu_uuid": "G"}]',
        "[" * 5000,
        '[{"id": 1}]',
        "x" * 9000,
    ],
)
def test_what_is_no_request_is_left_out(text: str | None) -> None:
    assert bursts_of(text) == []


def test_an_agent_takes_what_a_newer_collector_adds() -> None:
    text = '[{"id": "0123456789ab", "gpu_uuid": "GPU-1", "hz": 5, "seconds": 3, "why": "later"}]'
    assert bursts_of(text) == [BurstRequest("0123456789ab", "GPU-1", 5.0, 3.0)]


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "the body must be like"),
        ({"node": "n1", "gpu_uuid": "G", "for": 1}, "the body must be like"),
        ({"node": "", "gpu_uuid": "G"}, "node must be"),
        ({"node": "n1"}, "gpu_uuid must be"),
        ({"node": "n1", "gpu_uuid": "G", "hz": 0.5}, "hz must be 1 to 50, not 0.5"),
        ({"node": "n1", "gpu_uuid": "G", "hz": True}, "hz must be"),
        ({"node": "n1", "gpu_uuid": "G", "seconds": 61}, "seconds must be 1 to 60, not 61"),
        ({"node": "n1", "gpu_uuid": "G", "seconds": float("nan")}, "seconds must be"),
    ],
)
def test_wrong_requests_are_a_sentence(document: Any, why: str) -> None:
    with pytest.raises(BurstError, match=why):
        burst_of(document, "0123456789ab")


def test_the_defaults_are_those_of_the_command() -> None:
    node, request = burst_of({"node": "n1", "gpu_uuid": "G"}, "0123456789ab")
    assert (node, request.hz, request.seconds) == ("n1", 20.0, 30.0)
