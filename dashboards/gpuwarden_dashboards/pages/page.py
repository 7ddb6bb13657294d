"""Defines what all pages with data have: templates, the port to the data, and the clock."""

from collections.abc import Callable, Iterable

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.judgement import Judgement, JudgementState
from gpuwarden.query import Querier
from gpuwarden_dashboards.templates import Templates

JudgementOf = Callable[[], Judgement]
"""Gives how far the rules have judged the fleet now."""


def judged() -> Judgement:
    """For a fleet without rules, which counts as judged."""
    return Judgement(JudgementState.YES, None, 0, 0)


class Page:
    """A page, or a few of one kind."""

    def __init__(
        self,
        templates: Templates,
        querier: Querier,
        clock: Clock,
        judgement: JudgementOf = judged,
    ) -> None:
        self._templates = templates
        self._querier = querier
        self._clock = clock
        self._judgement = judgement

    def routes(self) -> Iterable[web.RouteDef]:
        """Paths of the page and of its data."""
        raise NotImplementedError

    @property
    def _unjudged(self) -> str | None:
        """Why the absence of alerts says nothing now; None: the rules have judged the fleet."""
        judgement = self._judgement()
        return None if judgement.state is JudgementState.YES else judgement.sentence
