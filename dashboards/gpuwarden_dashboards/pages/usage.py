"""Serves the page of a user."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from aiohttp import web

from gpuwarden.right_size import RightSize, read_right_sizes
from gpuwarden.waste import CATEGORIES
from gpuwarden_dashboards.http import NotKnownError, choice, fixed_range, given_range, html
from gpuwarden_dashboards.pages.money import RANGES
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.subject import Subject, read_subject
from gpuwarden_dashboards.read.usage import SINCE, SORTS


@dataclass(frozen=True, slots=True)
class UsageRange:
    """Time range and order of a page; `given` keeps them in links."""

    begin: datetime
    end: datetime
    since: str = ""
    """One of `SINCE`; empty: begin and end are given, or follow from the job."""
    sort: str = "usd"
    is_own: bool = False
    """Whether it is the time of the job itself."""

    @property
    def given(self) -> Mapping[str, str]:
        """Query parameters of the address."""
        time = {"since": self.since} if self.since else {} if self.is_own else self.fixed
        return {**time, **({} if self.sort == "usd" else {"sort": self.sort})}

    @property
    def fixed(self) -> Mapping[str, str]:
        """The range as fixed times."""
        return fixed_range(self.begin, self.end)


class UsagePages(Page):
    """GET /users/{name}."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/users/{name:.+}", self._user)]

    def render_subject(
        self, subject: Subject, asked: UsageRange, cheaper: Sequence[RightSize] = ()
    ) -> str:
        """The HTML of one user."""
        return self._templates.render(
            "subject.html",
            subject=subject,
            asked=asked,
            sinces=SINCE,
            ranges=RANGES,
            now=self._clock.now(),
            categories=tuple(CATEGORIES),
            meanings=CATEGORIES,
            cheaper=cheaper,
        )

    async def _user(self, request: web.Request) -> web.Response:
        name, asked = request.match_info["name"], asked_range(request, self._clock.now())
        subject = await read_subject(
            self._querier, "username", name, asked.begin, asked.end, asked.sort
        )
        if subject is None:
            raise NotKnownError(
                f"there is no data of user {name} in that time: choose a longer one"
            )
        cheaper = await read_right_sizes(
            self._querier, asked.begin, asked.end, "username = $username", {"username": name}
        )
        return html(self.render_subject(subject, asked, cheaper))


def asked_range(request: web.Request, now: datetime) -> UsageRange:
    """The time range and order of an address. Raises ParameterError."""
    sort = choice(request, "sort", "usd", ("name", *SORTS))
    if given := given_range(request, now):
        return UsageRange(*given, "", sort)
    since = choice(request, "since", "7d", SINCE)
    return UsageRange(now - SINCE[since], now, since, sort)
