"""Defines whether the rules have judged the fleet; until then the absence of alerts says nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuwarden.clock import iso_text

NAMED_MAX = 3


class JudgementState(StrEnum):
    """Whether the alerts reflect the current state."""

    YES = "judged"
    NOT_YET = "not_judged"
    """A rule has not run on fresh data since the start."""
    STALE = "stale"
    """A rule has not run on fresh data for too long."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How far the rules have judged the fleet."""

    state: JudgementState
    since: datetime | None
    """Since when the fleet is not judged; None: it is judged, or the rules have not started."""
    rules: int
    judged: int
    """Number of rules that have run on fresh data recently and since the start."""
    waiting: tuple[str, ...] = ()
    """Names of the other rules."""

    @property
    def sentence(self) -> str:
        """One line for people."""
        if self.state is JudgementState.YES:
            return f"All {self.rules} rules are judged."
        if self.since is None:
            return "Not judged yet: the rules have not started."
        since = f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        run = f"{self.judged} of {self.rules} rules have run on fresh data"
        if self.state is JudgementState.NOT_YET:
            return f"Not judged yet, {since}: {run}."
        return f"Not judged {since}: {run}, and not {self._named}."

    @property
    def _named(self) -> str:
        more = len(self.waiting) - NAMED_MAX
        return ", ".join(self.waiting[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")

    def document(self) -> dict[str, Any]:
        """The JSON of the API."""
        return {
            "state": self.state.value,
            "since": iso_text(self.since) if self.since else None,
            "rules": self.rules,
            "judged": self.judged,
            "waiting": list(self.waiting),
            "sentence": self.sentence,
        }


NOT_STARTED = Judgement(JudgementState.NOT_YET, None, 0, 0)


def unjudged(document: Mapping[str, Any]) -> str | None:
    """The sentence of the API's JSON; None: the fleet is judged, or its state is missing."""
    is_known = document.get("state") in (JudgementState.NOT_YET, JudgementState.STALE)
    return str(document["sentence"]) if is_known else None
