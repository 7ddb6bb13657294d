"""Holds what every page with data has: templates, and where and when it reads."""

from gpuwarden.clock import Clock
from gpuwarden.query import Querier
from gpuwarden_dashboards.templates import Templates


class Page:
    """A page, or a few of one kind."""

    def __init__(self, templates: Templates, querier: Querier, clock: Clock) -> None:
        self._templates = templates
        self._querier = querier
        self._clock = clock
