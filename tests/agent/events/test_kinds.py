"""Kinds of events, and the page that explains them."""

import re
from pathlib import Path

import pytest

from gpuwarden_agent.events.kinds import KINDS, event, span
from gpuwarden_collector.ingest import clock_check as agent_clocks
from gpuwarden_collector.ingest import gpu_owners, node_owners

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


def test_the_page_explains_every_kind_with_its_severity_and_no_other() -> None:
    rows = re.findall(r"^- `(\w+)` \*\*(\w+)\*\*: ", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows))
    of_gpus = (gpu_owners.CLAIMED_TWICE, gpu_owners.TOO_MANY)
    of_collector = (*of_gpus, node_owners.CLAIMED_TWICE, agent_clocks.CLOCK_APART)
    assert dict(rows) == KINDS | dict.fromkeys(of_collector, "warning")


def test_a_kind_that_is_new_to_the_agent_is_a_warning() -> None:
    assert event("flux_capacitor", "x")["severity"] == "warning"
    assert event("agent_gap", "x", severity="info")["severity"] == "info"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (37, "37 s"), (119.4, "119 s"), (720, "12 min"), (11_100, "3 h 05 min"),
     (432_000, "5 days")],
)  # fmt: skip
def test_spans_are_words_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text
