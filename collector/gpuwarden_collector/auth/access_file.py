"""Reads `access_file`: teams, what groups of people may do, and how people sign in. TOML; docs/security.md describes it."""

import hashlib
import ipaddress
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from gpuwarden.access import CALLBACK_PATH, Scope
from gpuwarden.teams import Team

ROLES: Mapping[str, Scope] = {
    "viewer": Scope.READ,
    "editor": Scope.EDIT,
    "operator": Scope.OPERATE,
    "admin": Scope.ADMIN,
}
"""Scopes by role, the least first."""
_RANKS = {scope: rank for rank, scope in enumerate(ROLES.values())}
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Team = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
_Seconds = Annotated[int, msgspec.Meta(ge=60, le=30 * 86_400)]


def person_id(issuer: str, subject: str) -> str:
    """The id of a person: 12 small letters and digits. `issuer`: who knows them by `subject`."""
    number = int.from_bytes(hashlib.sha256(f"{issuer}\n{subject}".encode()).digest())
    digits = string.digits + string.ascii_lowercase
    found = ""
    for _ in range(12):
        number, rest = divmod(number, len(digits))
        found += digits[rest]
    return found


def is_within(address: str | None, networks: Sequence[str]) -> bool:
    """Whether an address is in one of the networks."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return False
    return any(found in ipaddress.ip_network(network) for network in networks)


class AccessFileError(Exception):
    """The file cannot be used; one line with its path."""


class _TeamTable(msgspec.Struct, forbid_unknown_fields=True):
    nodes: list[_Name] = []
    labels: dict[_Name, str] | None = None
    users: list[_Name] = []
    accounts: list[_Name] = []
    namespaces: list[_Name] = []


class GroupRights(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What members of a group may do."""

    role: str
    team: str | None = None
    """None: of all teams."""


class OidcSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A provider of OpenID Connect."""

    issuer: str
    """Its URL, as in its tokens."""
    client_id: _Name
    client_secret_file: Path | None = None
    """None: a public client, which PKCE protects alone."""
    redirect_url: str = ""
    """URL of the collector's /login/callback as browsers see it. Required: a request's Host must not decide it."""
    scopes: tuple[str, ...] = ("openid", "profile", "email", "groups")
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    ca_file: Path | None = None
    """PEM file of the authority of the provider's certificate; None: the system's."""
    session_seconds: _Seconds = 8 * 3600


class ProxySettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A proxy that signs people in and says who they are."""

    addresses: list[str]
    """Its networks: headers of other clients are refused."""
    user_header: str = "X-Forwarded-User"
    groups_header: str = "X-Forwarded-Groups"


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    teams: dict[_Team, _TeamTable] = {}
    groups: dict[_Name, GroupRights] = {}
    oidc: OidcSettings | None = None
    proxy: ProxySettings | None = None


@dataclass(frozen=True, slots=True)
class Rights:
    """What a person may do."""

    scope: Scope
    team: str | None


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The content of the file."""

    teams: Mapping[str, Team] = field(default_factory=dict)
    groups: Mapping[str, GroupRights] = field(default_factory=dict)
    oidc: OidcSettings | None = None
    proxy: ProxySettings | None = None

    def rights_of(self, groups: frozenset[str]) -> Rights | None:
        """What members of these groups may do; None: nothing. The highest role counts, of one role the one without a
        team; of several teams that of the group that is listed first."""
        found = [
            Rights(ROLES[rights.role], rights.team)
            for name, rights in self.groups.items()
            if name in groups
        ]
        return max(found, key=lambda one: (_RANKS[one.scope], one.team is None), default=None)


def load_access(path: Path | None) -> AccessRules:
    """Read the file; None: there is none. Raises AccessFileError."""
    if path is None:
        return AccessRules()
    try:
        found = tomllib.loads(path.read_text())
        document = msgspec.convert(found, _Document, dec_hook=lambda kind, value: kind(value))
    except OSError as error:
        raise AccessFileError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AccessFileError(f"{path}: not UTF-8 text") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise AccessFileError(f"{path}: {error}: docs/security.md#people has an example") from error
    _check(path, document)
    teams = {name: _team(name, table) for name, table in document.teams.items()}
    return AccessRules(teams, document.groups, document.oidc, document.proxy)


def _team(name: str, table: _TeamTable) -> Team:
    has_none = not (table.nodes or table.users or table.accounts or table.namespaces)
    labels = {"team": name} if table.labels is None and has_none else table.labels or {}
    return Team(
        name,
        tuple(table.nodes),
        tuple(labels.items()),
        tuple(table.users),
        tuple(table.accounts),
        tuple(table.namespaces),
    )


def _check(path: Path, document: _Document) -> None:
    """Raise AccessFileError for values that do not fit together."""
    for name, rights in document.groups.items():
        where = f"{path}: groups.{name}"
        if rights.role not in ROLES:
            raise AccessFileError(
                f"{where}: role {rights.role!r} must be one of {', '.join(ROLES)}"
            )
        if rights.team is not None and rights.team not in document.teams:
            raise AccessFileError(
                f"{where}: there is no team {rights.team!r}: add [teams.{rights.team}]"
            )
        if rights.team is not None and rights.role == "admin":
            raise AccessFileError(
                f"{where}: role admin is for all teams: leave out team, or make it an operator"
            )
    if document.oidc is not None:
        _check_oidc(path, document.oidc)
    for address in document.proxy.addresses if document.proxy else ():
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise AccessFileError(f"{path}: proxy.addresses: {error}") from error
    if document.proxy is not None and not document.proxy.addresses:
        raise AccessFileError(f"{path}: proxy.addresses is empty: name the proxy's address")


def _check_oidc(path: Path, oidc: OidcSettings) -> None:
    if not oidc.redirect_url:
        raise AccessFileError(
            f'{path}: oidc.redirect_url is missing: set it to "https://COLLECTOR{CALLBACK_PATH}", as browsers see it'
        )
    for name in ("issuer", "redirect_url"):
        parts = urlsplit(getattr(oidc, name))
        is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
        if parts.scheme != "https" and not is_local:
            raise AccessFileError(f"{path}: oidc.{name} must be an https:// URL")
    if "openid" not in oidc.scopes:
        raise AccessFileError(f"{path}: oidc.scopes must have openid")
