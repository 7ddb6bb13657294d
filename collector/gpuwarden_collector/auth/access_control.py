"""Controls access to the collector: tokens, endpoints and certificate, reloaded when their files change."""

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from gpuwarden.access import ID, Denied, Scope
from gpuwarden.clock import Clock
from gpuwarden.files import Mark, mark_of
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.auth import token_file
from gpuwarden_collector.auth.access_file import AccessFileError, load_access
from gpuwarden_collector.auth.connections import Connections, limits_of
from gpuwarden_collector.auth.enrolment import enrolment_route
from gpuwarden_collector.auth.exposure import exposure_of
from gpuwarden_collector.auth.gate import Gate
from gpuwarden_collector.auth.routes import AccessRoutes
from gpuwarden_collector.auth.tls import ServerTls, certificate_of
from gpuwarden_collector.auth.token_file import TokenFileError
from gpuwarden_collector.auth.token_store import Granted, TokenEntry
from gpuwarden_collector.settings import CollectorSettings

log = logging.getLogger(__name__)

RELOAD_S = 2.0
"""Interval of `refresh`: a revoked token is valid for no longer than this."""
LAST_USED_INTERVAL_S = 60.0
CERTIFICATE_LOG_INTERVAL_S = 86_400.0


def tokens_path(settings: CollectorSettings) -> Path:
    """Path of the file of tokens."""
    return settings.data_dir / token_file.NAME


def _nothing(before: Sequence[TokenEntry], after: Sequence[TokenEntry]) -> None:
    """For changes of tokens that nobody follows."""


def has_sign_in(settings: CollectorSettings) -> bool:
    """Whether people can sign in at a provider. Raises StartError."""
    try:
        return load_access(settings.access_file).oidc is not None
    except AccessFileError as error:
        raise StartError(str(error)) from error


class AccessControl:
    """Decides who may use the collector. Call `refresh` every RELOAD_S seconds and `close` at the end."""

    def __init__(
        self, settings: CollectorSettings, clock: Clock, denied: Counter[str], descriptors: int
    ) -> None:
        """`descriptors`: the process's limit. Raises StartError for unsafe settings and invalid files."""
        self._clock = clock
        self._path = tokens_path(settings)
        self.exposure = exposure_of(settings)
        self.tls: ServerTls | None = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            self.tls = ServerTls(settings.tls_cert, settings.tls_key)
        self._ca = settings.tls_ca
        self._ca_mark: Mark | None = None
        self.authority_ends_at: datetime | None = None
        """End of the authority's certificate, which nodes trust; None: there is none."""
        self._read_authority()
        self._mark = mark_of(self._path)
        try:
            self._store = token_file.load(self._path)
        except TokenFileError as error:
            raise StartError(str(error)) from error
        self.on_tokens: Callable[[Sequence[TokenEntry], Sequence[TokenEntry]], None] = _nothing
        """Called with the tokens before and after each change of their file."""
        self._rules_path = settings.access_file
        self._rules_mark = None if self._rules_path is None else mark_of(self._rules_path)
        try:
            self._rules = load_access(self._rules_path)
        except AccessFileError as error:
            raise StartError(str(error)) from error
        limits = limits_of(descriptors, asks_tokens=self.exposure.asks_tokens)
        self.connections = Connections(limits)
        """Connections of HTTP."""
        self._gate = Gate(
            self.exposure,
            lambda: self._store,
            lambda: self._rules,
            self.reload,
            clock,
            denied,
            self.connections,
        )
        self._used_before = token_file.last_used(self._path)
        self._used_written: dict[str, datetime] = {}
        self._used_at_s = clock.monotonic()
        self._logged_at_s = clock.monotonic()
        people = self._rules.oidc or self._rules.proxy
        if people is not None and not self.exposure.asks_tokens:
            raise StartError(
                f"{self._rules_path} signs people in, but this collector requires no tokens: set require_tokens = true"
            )
        routes = AccessRoutes(
            self._path,
            settings.tls_ca,
            clock,
            self.reload,
            self._gate.judged,
            lambda: self._rules,
        )
        self.routes: Iterable[web.AbstractRouteDef] = routes.routes()
        self._log_warnings()

    def enrolment(self, stored_nodes: Callable[[], Collection[str]]) -> web.AbstractRouteDef:
        """Make the route of enrolment. `stored_nodes`: the nodes that have rows."""
        return enrolment_route(self._path, self._clock, self.reload, stored_nodes)

    def _log_warnings(self) -> None:
        if self.tls is not None:
            self.tls.warn_if_it_ends(self._clock.now())
        if self.exposure.asks_tokens and not self._store.entries:
            remedy = "gpuwarden token enrolment, or gpuwarden token create"
            log.warning(
                "there are no tokens yet: every request is denied", extra={"remedy": remedy}
            )

    @property
    def asks_tokens(self) -> bool:
        """Whether clients need a token."""
        return self.exposure.asks_tokens

    @property
    def middleware(self) -> Any:
        """The middleware for aiohttp."""
        return self._gate.middleware

    def judged(self, token: str, need: Scope, client: str) -> Granted | Denied:
        """Check the token of a client that does not use HTTP."""
        return self._counted(self._gate.judged(token, need, client), client)

    def judged_as(self, name: str, need: Scope, client: str, *, is_it: bool) -> Granted | Denied:
        """As `judged`, for a token by its id; `is_it`: the client has proved that it has the token."""
        return self._counted(self._gate.judged_entry(name, need, client, is_it=is_it), client)

    def refused_connection(self, client: str) -> None:
        """Count a connection that was closed because of a limit."""
        why = "there are too many connections, or too many from one address without a valid token"
        self._gate.count(Denied("connections", why), client=client, path="")

    def is_guessing(self, client: str) -> bool:
        """Whether an address has sent too many wrong tokens lately, so that no further token is checked."""
        return self._gate.is_guessing(client)

    def scram_of(self, name: str) -> str | None:
        """SCRAM verifier of the token with this id; None: there is none."""
        entry = self._store.get(name)
        if entry is None and ID.fullmatch(name):
            self.reload()  # it may have been created just now
            entry = self._store.get(name)
        return None if entry is None else entry.scram

    def withdrawn(self, grant: Granted | None) -> Denied | None:
        """Why an admitted client may not continue; None: it may."""
        if grant is None:
            return None
        entry = self._store.get(grant.entry.id)
        is_it = entry is not None and entry.sha256 == grant.entry.sha256
        verdict = self._gate.judged_entry(grant.entry.id, Scope.READ, None, is_it=is_it)
        if isinstance(verdict, Granted) and verdict.team != grant.team:
            return Denied("team", "the team of this token has changed: connect again", 403)
        return verdict if isinstance(verdict, Denied) else None

    def _counted(self, verdict: Granted | Denied, client: str) -> Granted | Denied:
        if isinstance(verdict, Denied):
            self._gate.count(verdict, client=client, path="postgres")
        return verdict

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The context to listen with; None: no TLS."""
        return None if self.tls is None else self.tls.context

    @property
    def certificate_ends_at(self) -> datetime | None:
        """End of the server's certificate; None: there is none."""
        return None if self.tls is None else self.tls.certificate.ends_at

    def reload(self) -> None:
        """Read tokens and certificate again if their files have changed."""
        if self.tls is not None:
            self.tls.reload()
        self._read_authority()
        self._read_rules()
        mark = mark_of(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        before = self._store.entries
        try:
            self._store = token_file.load(self._path)
            self.on_tokens(before, self._store.entries)
        except TokenFileError as error:
            log.error("tokens cannot be read; the old ones stay valid", extra={"why": str(error)})

    def _read_rules(self) -> None:
        mark = None if self._rules_path is None else mark_of(self._rules_path)
        if mark == self._rules_mark:
            return
        self._rules_mark = mark
        try:
            self._rules = load_access(self._rules_path)
        except AccessFileError as error:
            log.error("access_file cannot be read; the old one holds", extra={"why": str(error)})

    def _read_authority(self) -> None:
        mark = None if self._ca is None else mark_of(self._ca)
        if self._ca is None or mark == self._ca_mark:
            return
        self._ca_mark = mark
        try:
            self.authority_ends_at = certificate_of(self._ca).ends_at
        except ValueError as error:
            self.authority_ends_at = None
            log.warning("tls_ca cannot be read; no node can enroll", extra={"why": str(error)})

    async def refresh(self) -> None:
        """Read changed files, write when tokens were used, and warn of an expiring certificate, as it is due."""
        self.reload()
        now_s = self._clock.monotonic()
        if now_s - self._used_at_s >= LAST_USED_INTERVAL_S:
            self._used_at_s = now_s
            await self._write_used()
        if now_s - self._logged_at_s >= CERTIFICATE_LOG_INTERVAL_S:
            self._logged_at_s = now_s
            self._log_warnings()

    async def close(self) -> None:
        """Write when tokens were last used."""
        await self._write_used()

    async def _write_used(self) -> None:
        if self._gate.last_used == self._used_written:
            return
        written = dict(self._gate.last_used)
        merged = self._used_before | written
        known = {name: at for name, at in merged.items() if self._store.get(name) is not None}
        try:
            await asyncio.to_thread(token_file.write_last_used, self._path, known)
        except TokenFileError as error:
            log.warning(
                "the times at which tokens were last used cannot be written",
                extra={"why": str(error)},
            )
        self._used_written = written
