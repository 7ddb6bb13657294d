"""Reads the notification file: receivers, routes, owners, digests and reports. Problems have line and column.

    timezone: Europe/Berlin                 for times in messages (default UTC)
    link: https://gpuwarden.example.com     the page, at the end of each message
    receivers:
      - name: oncall
        apprise: ${PAGERDUTY}               exactly one of apprise, webhook, alertmanager, file, stdout
        resolved: false                     no messages about ends (default true)
      - name: hook
        webhook: https://example.com/gpus
        secret: ${file:/run/secrets/hook}
      - name: am
        alertmanager: http://127.0.0.1:9093
        silences: true                      its silences are ours, and ours its (default false)
    routes:                                 default: everything to every receiver
      - receivers: [oncall]
        match: {severity: critical, node: ["dgx-*", "hgx-*"]}
        continue: true
    owners: {address: "{user}@example.com", exceptions: {root: ops@example.com}}
    digests:
      - {receivers: [hook], at: "08:00", top: 5}
    reports:
      - {receivers: [managers], every: week, day: monday, at: "08:00", by: team, only: {team: vision}}

`${NAME}` in a text is an environment variable, `${file:PATH}` the content of a file. No message of this
module shows their values. `docs/notifications.md` describes every key.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, time, tzinfo
from fnmatch import translate
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from yaml.nodes import Node, ScalarNode, SequenceNode

from gpuwarden.durations import seconds_of
from gpuwarden.waste_report import BY
from gpuwarden_rules.definition.yaml_positions import YamlReader, read_text
from gpuwarden_rules.notify.digest import DigestPlan
from gpuwarden_rules.notify.receivers.factory import KINDS, UPDATING, ReceiverPlan
from gpuwarden_rules.notify.reports import DAYS, EVERY, ReportPlan
from gpuwarden_rules.notify.routing import Owners, Recipient, Route, RoutingPolicy
from gpuwarden_rules.notify.sentences import FORMS, Style

DURATION_S_MAX = 30 * 86400.0
TOP_MAX = 20
REPORTED_BY = (*BY, "category")
REPORTED_AT = time(8)
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_AT = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """The content of the notification file."""

    receivers: tuple[ReceiverPlan, ...]
    policy: RoutingPolicy
    style: Style
    digests: tuple[DigestPlan, ...] = ()
    reports: tuple[ReportPlan, ...] = ()


def load(path: Path) -> Notify:
    """The content of the file. Raises RuleFileError with every problem."""
    return parse(read_text(path), str(path), os.environ)


def parse(text: str, path: str, env: Mapping[str, str]) -> Notify:
    """The content of a text; `path` is for messages. Raises RuleFileError."""
    file = _File(path, text, env)
    notify = file.notify(file.root())
    file.raise_problems()
    return notify


class _File(YamlReader):
    """Reads the parts of the file; a wrong value is noted and reads as its default."""

    def __init__(self, path: str, text: str, env: Mapping[str, str]) -> None:
        super().__init__(path, text)
        self._env = env

    def notify(self, root: Node | None) -> Notify:
        nodes = self.fields(
            root,
            required=("receivers",),
            optional=("timezone", "link", "routes", "owners", "digests", "reports"),
        )
        receivers = self._receivers(nodes.get("receivers"))
        names = tuple(receivers)
        routes = [self._route(node, names) for node in self.items(nodes.get("routes"))]
        if "routes" not in nodes:
            routes = [Route(receivers=names)]
        zone = self._zone(nodes.get("timezone"))
        digests = [self._digest(node, names, zone) for node in self.items(nodes.get("digests"))]
        owners = self._owners(nodes.get("owners"))
        personal = [r.name for r in receivers.values() if "{owner}" in r.target]
        if personal and "owners" not in nodes and "receivers" in nodes:
            self.note(
                nodes["receivers"],
                f"{personal[0]} has {{owner}} in its address: `owners` is missing",
            )
        reports = [
            self._report(node, names, zone, personal) for node in self.items(nodes.get("reports"))
        ]
        recipients = {
            r.name: Recipient(
                r.wants_resolved, r.name in personal, r.kind == "alertmanager", r.kind in UPDATING
            )
            for r in receivers.values()
        }
        return Notify(
            receivers=tuple(receivers.values()),
            policy=RoutingPolicy(recipients, routes, owners),
            style=Style(zone, self._web_address(nodes.get("link"))),
            digests=tuple(digests),
            reports=tuple(reports),
        )

    def _receivers(self, node: Node | None) -> dict[str, ReceiverPlan]:
        found: dict[str, ReceiverPlan] = {}
        for item in self.items(node):
            plan = self._receiver(item)
            if plan is None:
                continue
            if plan.name in found:
                self.note(item, f"receiver {plan.name!r} stands twice")
            found[plan.name] = plan
        if node is not None and not self.problems and not found:
            self.note(node, "at least one receiver is needed")
        return found

    def _receiver(self, node: Node) -> ReceiverPlan | None:
        nodes = self.fields(
            node,
            required=("name",),
            optional=(*KINDS, "secret", "token", "format", "resolved"),
        )
        name = self._name(nodes.get("name"))
        kinds = [kind for kind in KINDS if kind in nodes]
        if len(kinds) != 1:
            had = f", not {' and '.join(kinds)}" if kinds else ""
            self.note(node, f"a receiver has exactly one of {', '.join(KINDS)}{had}")
            return None
        kind = kinds[0]
        target = self._target(kind, nodes[kind])
        key = "token" if kind == "slack" else "secret"
        secret = self._resolved(nodes.get(key))
        if "secret" in nodes and kind != "webhook":
            self.note(nodes["secret"], "only a webhook has a secret")
        elif secret is not None and kind == "webhook":
            self._check_secret(nodes["secret"], secret)
        if "token" in nodes and kind != "slack":
            self.note(nodes["token"], "only slack has a token")
        elif kind == "slack" and not (secret or "").startswith("xoxb-"):
            self.note(
                nodes.get("token", node),
                "slack needs the `token` of a bot (xoxb-...) with the scope chat:write; without one,"
                " use an incoming webhook: apprise: slack://...",
            )
        return ReceiverPlan(
            name=name,
            kind=kind,
            target=target,
            secret=secret,
            form=self._form(kind, nodes.get("format")),
            wants_resolved=self.boolean(nodes.get("resolved")) is not False,
        )

    def _name(self, node: Node | None) -> str:
        name = self.text(node)
        if node and name is not None and not _NAME.match(name):
            self.note(node, "a name has letters, digits, dots, - and _")
        return name or ""

    def _target(self, kind: str, node: Node) -> str:
        if kind == "stdout":
            if self.boolean(node) is False:
                self.note(node, "write true, or leave the receiver out")
            return ""
        target = self._resolved(node) or ""
        if not target:
            return ""
        if kind in ("webhook", "alertmanager"):
            self._check_web(node, target)
        elif kind == "file" and not Path(target).is_absolute():
            self.note(node, "the path must be absolute")
        elif kind == "apprise":
            from gpuwarden_rules.notify.receivers.apprise_service import problem_of

            if problem := problem_of(target):
                self.note(node, problem)
        return target

    def _check_secret(self, node: Node, secret: str) -> None:
        from gpuwarden_rules.notify.receivers.webhook import key_of

        try:
            key = key_of(secret)
        except ValueError as error:
            self.note(node, str(error))
        else:
            if not key:
                self.note(node, "the secret is empty")

    def _form(self, kind: str, node: Node | None) -> str:
        known = (*FORMS, "json") if kind == "stdout" else FORMS
        if node is None:
            return "text"
        form = self.text(node)
        if kind not in ("apprise", "stdout"):
            self.note(node, "only apprise and stdout have a format")
        elif form is not None and form not in known:
            self.note(node, f"format {form!r} must be one of {', '.join(known)}")
        return form or "text"

    def _route(self, node: Node, names: tuple[str, ...]) -> Route:
        spans = ("update_interval", "repeat_interval")
        nodes = self.fields(node, required=("receivers",), optional=("match", "continue", *spans))
        interval_s, repeat_s = (self._span(nodes.get(name)) for name in spans)
        if repeat_s is not None and repeat_s < 60:
            self.note(nodes["repeat_interval"], "must be at least 60s")
        return Route(
            receivers=self._named(nodes.get("receivers"), names),
            match=self._match(nodes.get("match")),
            continues=self.boolean(nodes.get("continue")) is True,
            interval_s=interval_s,
            repeat_s=repeat_s,
        )

    def _match(self, node: Node | None) -> dict[str, tuple[re.Pattern[str], ...]]:
        return {
            name: tuple(re.compile(translate(glob)) for glob in self._texts(value))
            for name, (_, value) in self.entries(node).items()
        }

    def _owners(self, node: Node | None) -> Owners:
        if node is None:
            return Owners()
        nodes = self.fields(node, optional=("address", "exceptions", "nobody"))
        template = self._resolved(nodes.get("address"))
        if template is not None and "{user}" not in template:
            self.note(nodes["address"], "the address has no {user}")
        known = {
            user: self._resolved(value) or ""
            for user, (_, value) in (self.entries(nodes.get("exceptions"))).items()
        }
        nobody = self._resolved(nodes.get("nobody"))
        return Owners(template, known, nobody)

    def _report(
        self, node: Node, names: tuple[str, ...], zone: tzinfo, personal: list[str]
    ) -> ReportPlan:
        optional = ("every", "day", "at", "by", "only")
        nodes = self.fields(node, required=("receivers",), optional=optional)
        receivers = self._named(nodes.get("receivers"), names)
        for name in personal:
            if name in receivers:
                self.note(nodes["receivers"], f"{name} is personal: a report has no owner")
        every = self._one_of(nodes.get("every"), EVERY, "week")
        only = {}
        for by, (key, value) in self.entries(nodes.get("only")).items():
            if by not in REPORTED_BY:
                self.note(key, f"{by!r} must be one of {', '.join(REPORTED_BY)}")
            only[by] = self._plain(value) or ""
        return ReportPlan(
            receivers=receivers,
            every=every,
            day=self._day(nodes.get("day"), every),
            at=self._time_of_day(nodes["at"]) if "at" in nodes else REPORTED_AT,
            zone=zone,
            by=self._one_of(nodes.get("by"), REPORTED_BY, "team"),
            only=only,
        )

    def _day(self, node: Node | None, every: str) -> int:
        """Number of the weekday, or day of the month."""
        if every == "week":
            return DAYS.index(self._one_of(node, DAYS, DAYS[0]))
        day = self.scalar(node) if node is not None else 1
        if isinstance(day, bool) or not isinstance(day, int) or not 1 <= day <= 28:
            assert node is not None
            self.note(node, "the day of a month must be from 1 to 28")
            return 1
        return day

    def _one_of(self, node: Node | None, words: Sequence[str], usual: str) -> str:
        if node is None:
            return usual
        word = self.text(node)
        if word is not None and word not in words:
            self.note(node, f"{word!r} must be one of {', '.join(words)}")
        return word if word is not None and word in words else usual

    def _time_of_day(self, node: Node) -> time:
        at = self._plain(node)
        match = _AT.match(at or "")
        if at is not None and match is None:
            self.note(node, f"{at!r} is not a time of day such as 08:00")
        return time(int(match[1]), int(match[2])) if match else time()

    def _digest(self, node: Node, names: tuple[str, ...], zone: tzinfo) -> DigestPlan:
        nodes = self.fields(node, required=("receivers", "at"), optional=("top",))
        top = self.scalar(nodes["top"]) if "top" in nodes else 5
        if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= TOP_MAX:
            self.note(nodes["top"], f"must be a whole number from 1 to {TOP_MAX}")
            top = 5
        return DigestPlan(
            receivers=self._named(nodes.get("receivers"), names),
            at=self._time_of_day(nodes["at"]) if "at" in nodes else time(),
            zone=zone,
            top=top,
        )

    def _zone(self, node: Node | None) -> tzinfo:
        name = self.text(node)
        if node is None or name is None or name == "UTC":
            return UTC
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            self.note(node, f"unknown time zone {name!r}; write it as in Europe/Berlin")
            return UTC

    def _web_address(self, node: Node | None) -> str | None:
        text = self._resolved(node)
        if node is not None and text:
            self._check_web(node, text)
        return text

    def _check_web(self, node: Node, address: str) -> None:
        try:
            parts = urlsplit(address)
            is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_web = False
        if not is_web:
            self.note(node, "must be an address that begins with http:// or https://")

    def _named(self, node: Node | None, names: tuple[str, ...]) -> tuple[str, ...]:
        """Names of known receivers."""
        found = []
        for item in self.items(node):
            name = self.text(item)
            if name is not None and name not in names:
                self.note(item, f"unknown receiver {name!r}; known: {', '.join(names) or 'none'}")
            elif name is not None:
                found.append(name)
        return tuple(found)

    def _texts(self, node: Node) -> list[str]:
        """A text or a list of them."""
        items = self.items(node) if isinstance(node, SequenceNode) else [node]
        return [text for item in items if (text := self._plain(item)) is not None]

    def _plain(self, node: Node) -> str | None:
        """A text; numbers and booleans as they are written, because labels have no types."""
        if isinstance(node, ScalarNode) and not node.tag.endswith(":null"):
            return str(node.value)
        return self.text(node)

    def _span(self, node: Node | None) -> float | None:
        if node is None:
            return None
        seconds = seconds_of(self._plain(node) or "")
        if seconds is None:
            self.note(node, "not a duration; write 90s, 10m, 2h or 1d")
        elif seconds > DURATION_S_MAX:
            self.note(node, "must be at most 30d")
        return seconds

    def _resolved(self, node: Node | None) -> str | None:
        """A text with its references replaced; None if that is a problem."""
        text = self.text(node)
        if node is None or text is None:
            return None
        before = len(self.problems)
        made = _REFERENCE.sub(lambda match: self._referred(node, match), text)
        if len(self.problems) == before and not made.strip():
            self.note(node, "must not be empty")
        return made if len(self.problems) == before else None

    def _referred(self, node: Node, match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith("file:"):
            return self._content(node, match, Path(name.removeprefix("file:")))
        if not _VARIABLE.match(name):
            self.note(node, f"{match[0]} must be ${{NAME}} or ${{file:/path}}", match.start())
        elif name not in self._env:
            self.note(node, f"the environment has no {name}", match.start())
        return self._env.get(name, "")

    def _content(self, node: Node, match: re.Match[str], path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            self.note(node, f"{path} cannot be read: {reason}", match.start())
            return ""
