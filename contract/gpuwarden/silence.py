"""Silences: who does not want to hear of which alerts until when; an acknowledgement is one for a
single alert.

A matcher is a text: `node=n1`, `severity!=critical`, `gpu_uuid=~GPU-0.*`, `team!~ml|web`. Its name is a
label, `rule` or `severity`; a label that an alert does not have is the empty text. Regular expressions
(RE2's, whose time is linear in the text, whatever the pattern) must match all of the value.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuwarden.alert import Alert

MATCHER_CHARS_MAX = 200
_MATCHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(=~|!~|!=|=)(.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on one label of an alert."""

    name: str
    operator: str
    value: str
    _pattern: Any = field(default=None, repr=False, compare=False)
    """What `operator` compares with where that is a regular expression."""

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the condition holds; `labels` with `rule` and `severity` among them."""
        value = labels.get(self.name, "")
        if self._pattern is None:
            is_same = value == self.value
        else:
            is_same = self._pattern.fullmatch(value) is not None
        return is_same is not self.operator.startswith("!")


def matcher_of(text: str) -> Matcher:
    """The matcher that a text such as `node=~gpu-0.*` means. Raises ValueError."""
    if len(text) > MATCHER_CHARS_MAX:
        raise ValueError(f"a matcher has at most {MATCHER_CHARS_MAX} characters: {text[:40]}...")
    found = _MATCHER.match(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is not a matcher; write node=n1, node!=n1, node=~n.* or node!~n.*"
        )
    name, operator, value = found.groups()
    pattern = None
    if "~" in operator:
        try:
            pattern = _compiled(value)
        except ValueError as error:
            raise ValueError(f"{text!r}: {value!r} is not a regular expression: {error}") from error
    return Matcher(name, operator, value, pattern)


def _compiled(value: str) -> Any:
    """Raises ValueError."""
    import re2  # here, so that the agent, which has no silences, does without the library

    options = re2.Options()
    options.log_errors = False  # it would write them to stderr
    try:
        return re2.compile(value, options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else reason) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Alerts that notify nobody from `starts_at` until `ends_at`, aware instants."""

    id: str
    matchers: tuple[Matcher, ...] = ()
    """All of them must match; none where the silence is of one alert."""
    fingerprint: str | None = None
    """The alert that was acknowledged; None: by matchers."""
    author: str
    comment: str
    starts_at: datetime
    ends_at: datetime

    def covers(self, alert: Alert) -> bool:
        """Whether it is about this alert, at whatever time."""
        if self.fingerprint is not None:
            return alert.fingerprint == self.fingerprint
        labels = {**alert.labels, "rule": alert.rule, "severity": alert.severity.value}
        return all(matcher.matches(labels) for matcher in self.matchers)

    def is_active(self, now: datetime) -> bool:
        """Whether it holds at `now`."""
        return self.starts_at <= now < self.ends_at

    def reason(self, now: datetime) -> str:
        """Why its alerts notify nobody: `silenced until 18:00 by alice: maintenance`."""
        verb = "silenced" if self.fingerprint is None else "acknowledged"
        same_day = self.ends_at.date() == now.date()
        until = self.ends_at.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M")
        comment = f": {self.comment}" if self.comment else ""
        return f"{verb} until {until} UTC by {self.author}{comment}"


def first_covering(silences: Sequence[Silence], alert: Alert, now: datetime) -> Silence | None:
    """The silence that holds longest of those that cover an alert at `now`."""
    active = [s for s in silences if s.is_active(now) and s.covers(alert)]
    return max(active, key=lambda s: (s.ends_at, s.id), default=None)
