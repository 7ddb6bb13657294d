"""Defines tokens: their form, and what each scope allows.

    gw_ingest_3f9k2m0c7x1q_<43 letters and digits>

Scanners for leaked secrets can recognise the form. The secret has 256 random bits, so that storing one SHA-256
of the token is enough: slow hashes protect against guessing, which is impossible here.
"""

import hashlib
import ipaddress
import re
import secrets
import string
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from gpuwarden.teams import Team

ENROLL_PATH = "/v1/enroll"
CA_PATH = "/v1/ca"
TOKEN_PATH = "/v1/token"
LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"
SIGN_IN_PATH = "/login/sso"
"""Sends a browser to the provider of single sign-on, which sends it back to `CALLBACK_PATH`."""
CALLBACK_PATH = "/login/callback"
COOKIE = "gpuwarden"
"""Name of the cookie with a browser's token; scripts and other sites cannot read it."""

OWN_PATH = re.compile(r"/(?![/\\])[!-~]*")
"""Where a login may redirect to: a path of this collector. Browsers remove tabs and line ends, so that
`/<tab>/x` would be another host."""

_ID_CHARACTERS = string.ascii_lowercase + string.digits
_SECRET_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 12
_SECRET_LENGTH = 43
"""Of 62 characters: 256 bits."""


class Scope(StrEnum):
    """What a token allows."""

    INGEST = "ingest"
    """Send batches; only of one node if the token names it."""
    READ = "read"
    """Read: SQL, pages, rules, alerts, metrics."""
    EDIT = "edit"
    """Read, and change annotations."""
    OPERATE = "operate"
    """Edit, and make and end silences."""
    ADMIN = "admin"
    """Everything."""
    ENROLL = "enroll"
    """Register a node's own token, and nothing else."""
    ACT = "act"
    """Fetch the acts of policies and report them, and nothing else."""
    COPY = "copy"
    """Store second copies of another collector's segments, and nothing else."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    scope: Scope | None
    """None: no token, for what everyone may see."""
    name: str | None
    """Comment of the token; None: no token is needed, or none was sent."""
    token: str | None = None
    """Id of the token, after rotation that of the first one."""
    team: Team | None = None
    """The team whose rows it may see; None: all rows."""


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not: a word to count by, a sentence, and 401 or 403."""

    why: str
    reason: str
    status: int = 401


_ANYONE = Caller(Scope.ADMIN, None)
CALLER: ContextVar[Caller] = ContextVar("CALLER", default=_ANYONE)
"""Caller of the current request, for pages to show what the reader may do. The gate does not use it."""

_TOKEN = re.compile(
    rf"gw_({'|'.join(Scope)})_([a-z0-9]{{{_ID_LENGTH}}})_[A-Za-z0-9]{{{_SECRET_LENGTH}}}"
)
ID = re.compile(rf"[a-z0-9]{{{_ID_LENGTH}}}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its secret, which its representation hides."""

    scope: Scope
    id: str
    """Names the token in lists, logs and messages; not secret."""
    text: str = field(repr=False)

    @classmethod
    def new(cls, scope: Scope) -> "Token":
        """A new token, from the system's randomness."""
        name = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
        secret = "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(_SECRET_LENGTH))
        return cls(scope, name, f"gw_{scope}_{name}_{secret}")

    @classmethod
    def parse(cls, text: str) -> "Token":
        """Parse a token. Raises ValueError, without the text in its message."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise ValueError("this is not a gpuwarden token: they begin with gw_")
        return cls(Scope(found[1]), found[2], text)

    @property
    def digest(self) -> str:
        """The hash that collectors store."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_token(path: Path) -> Token:
    """The token in a file that has nothing else. Raises ValueError: one line with the path."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is not a gpuwarden token: they begin with gw_") from error
    except OSError as error:
        raise ValueError(f"{path}: the token cannot be read: {error.strerror}") from error
    try:
        return Token.parse(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


_PEOPLE = (Scope.READ, Scope.EDIT, Scope.OPERATE)
"""Scopes of which each allows what those before it do."""


def allows(held: Scope, needed: Scope) -> bool:
    """Whether a token of scope `held` may do what needs `needed`."""
    if held is needed or held is Scope.ADMIN:
        return True
    both = held in _PEOPLE and needed in _PEOPLE
    return both and _PEOPLE.index(held) > _PEOPLE.index(needed)


@lru_cache(maxsize=64)
def is_local_name(host: str) -> bool:
    """Whether the host is an address or localhost, so that no website can resolve to it (DNS rebinding)."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or not host:
        return True
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
