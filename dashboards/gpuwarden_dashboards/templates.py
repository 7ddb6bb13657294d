"""Renders templates and formats their numbers and instants; None is an en dash.

Every text from outside is escaped. Scripts and styles are files of this server: the policy allows no
inline code.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gpuwarden import __version__
from gpuwarden.access import CALLER, LOGIN_PATH
from gpuwarden.durations import readable
from gpuwarden.query import QUERY_SEND_S
from gpuwarden.waste import CATEGORIES, TITLES
from gpuwarden_dashboards.assets import Assets
from gpuwarden_dashboards.grafana.links import dashboard_url

ABSENT = "–"
CATEGORY_TITLES: Mapping[str, str] = {**{n: n.replace("_", " ") for n in CATEGORIES}, **TITLES}
"""Categories of waste in words."""
NO_PRICE = "No price of these GPUs is known: set one in the prices file (docs/money.md, Prices)."
MENU = (
    ("Fleet", "/"),
    ("Incidents", "/incidents"),
    ("Money", "/money"),
    ("Rules", "/rules"),
    ("SQL", "/sql"),
    ("Collector", "/collector"),
)
SPANS = (
    ("1 min", 60), ("10 min", 600), ("1 h", 3_600), ("6 h", 21_600), ("24 h", 86_400), ("7 d", 604_800),
    ("30 d", 2_592_000), ("1 y", 31_536_000),
)  # fmt: skip
"""Spans that charts offer, in seconds."""
_OF_ALL = frozenset({"/rules", "/collector"})
"""Pages about all of the fleet, which readers of one team do not get."""


class Templates:
    """The templates, with the addresses of one set of assets."""

    def __init__(
        self,
        assets: Assets,
        grafana_url: str | None = None,
        query_timeout_s: float = 30.0,
    ) -> None:
        self.version = assets.version
        self._environment = Environment(
            loader=PackageLoader("gpuwarden_dashboards"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(
            assets=assets,
            version=__version__,
            menu=MENU,
            of_all=_OF_ALL,
            at="",
            spans=SPANS,
            query_timeout_s=query_timeout_s,
            query_send_s=QUERY_SEND_S,
            login_path=LOGIN_PATH,
            grafana=partial(dashboard_url, grafana_url) if grafana_url else None,
        )
        self._environment.filters.update(
            usd=usd,
            percent=percent,
            gigabytes=gigabytes,
            size=size,
            power=power,
            celsius=celsius,
            ago=ago,
            at=at,
            since=_since,
            span=lambda seconds: ABSENT if seconds is None else readable(seconds),
            node_path=node_path,
            prose=_prose,
            path=lambda name: quote(name, safe="/"),
        )

    def render(self, name: str, **values: Any) -> str:
        """The HTML of a template. `at`: path of the page in the menu. Templates see the caller as `reader`."""
        return self._environment.get_template(name).render(reader=CALLER.get(), **values)


def node_path(node: str, gpu: int | None = None) -> str:
    """The address of a node's page, or of the page of its GPU with this index."""
    return f"/nodes/{quote(node, safe='')}" + ("" if gpu is None else f"?gpu={gpu}")


def _prose(words: str) -> Markup:
    """A text with its backquotes as code."""
    parts = [escape(part) for part in words.split("`")]
    if len(parts) % 2 == 0:  # an odd number of backquotes
        return escape(words)
    return Markup().join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _since(instant: datetime | None, now: datetime) -> str:
    return ABSENT if instant is None else ago(instant, now).removesuffix(" ago")


def percent(value: float | None) -> str:
    """`37 %`."""
    return ABSENT if value is None else f"{value:.0f} %"


_AT = {
    "minute": "%Y-%m-%d %H:%M UTC",
    "second": "%Y-%m-%d %H:%M:%S UTC",
    "clock": "%H:%M UTC",
    "row": "%Y-%m-%d %H:%M:%S",
    "moment": "%m-%d %H:%M:%S",
    "short": "%m-%d %H:%M",
}
"""Forms of a time; the last three are for columns whose head has the zone. `times.js` has the same."""


def at(instant: datetime, form: str = "minute") -> Markup:
    """A time in UTC that `times.js` shows in the reader's zone."""
    return Markup('<time datetime="{}" data-form="{}">{}</time>').format(
        instant.isoformat(), form, instant.strftime(_AT[form])
    )


def usd(value: float | None) -> str:
    """`$2.95`, `$1,204`."""
    if value is None:
        return ABSENT
    return f"${value:,.2f}" if abs(value) < 1000 else f"${value:,.0f}"


def gigabytes(value: float | None) -> str:
    """`12.3 GiB` of bytes."""
    return ABSENT if value is None else f"{value / 1024**3:.1f} GiB"


def size(value: float | None) -> str:
    """`12.3 MiB`, `12.3 GiB` of bytes."""
    if value is None or value >= 1024**3:
        return gigabytes(value)
    return f"{value / 1024**2:.1f} MiB"


def power(value: float | None) -> str:
    """`412 W`, `3.1 kW` of watts."""
    if value is None:
        return ABSENT
    return f"{value:.0f} W" if value < 10_000 else f"{value / 1000:.1f} kW"


def celsius(value: float | None) -> str:
    """`61 °C`."""
    return ABSENT if value is None else f"{value:.0f} °C"


def ago(instant: datetime | None, now: datetime) -> str:
    """`3 s ago`; "never" for None."""
    return "never" if instant is None else f"{readable((now - instant).total_seconds())} ago"
