"""Tokens: their form and what each allows.

    gw_ingest_3f9k2m0c7x1q_<43 letters and digits>

The form is one that scanners for leaked secrets can look for. The secret has 256 random bits, so one
SHA-256 of the token is enough to store: there is nothing to guess, which is what slow hashes are for.
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

ENROLL_PATH = "/v1/enroll"
CA_PATH = "/v1/ca"
TOKEN_PATH = "/v1/token"
LOGIN_PATH = "/login"
LOGOUT_PATH = "/logout"
COOKIE = "gpuwarden"
"""Holds a browser's token, out of the reach of scripts and of other sites."""

OWN_PATH = re.compile(r"/(?![/\\])[!-~]*")
"""Where a login may lead: a path of this collector. Browsers leave tabs and line ends out, so that
`/<tab>/x` would be another host."""

_ID_CHARACTERS = string.ascii_lowercase + string.digits
_SECRET_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 12
_SECRET_LENGTH = 43
"""Of 62 characters: 256 bits."""


class Scope(StrEnum):
    """What a token allows."""

    INGEST = "ingest"
    """To send batches; of one node alone where the token names one."""
    READ = "read"
    """To ask: SQL, the page, rules, alerts, metrics."""
    ADMIN = "admin"
    """All of it, and to change what alerts do."""
    ENROLL = "enroll"
    """To have a node's own token taken up, and nothing else."""
    COPY = "copy"
    """To keep second copies of a collector's segments here, and nothing else."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    scope: Scope | None
    """None: nobody known, at what anybody may see."""
    name: str | None
    """What the token's list calls it; None: no token is asked for, or none was shown."""
    token: str | None = None
    """Id of the token, or of the first one that it has come from by rotation."""


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not: a word to count by, a sentence, and 401 or 403."""

    why: str
    reason: str
    status: int = 401


_ANYONE = Caller(Scope.ADMIN, None)
CALLER: ContextVar[Caller] = ContextVar("CALLER", default=_ANYONE)
"""Of the request that is answered: pages show what their reader may do. The gate decides by itself."""

_TOKEN = re.compile(
    rf"gw_({'|'.join(Scope)})_([a-z0-9]{{{_ID_LENGTH}}})_[A-Za-z0-9]{{{_SECRET_LENGTH}}}"
)
ID = re.compile(rf"[a-z0-9]{{{_ID_LENGTH}}}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Token:
    """A token as its owner holds it; its representation does not show the secret."""

    scope: Scope
    id: str
    """Not secret: names the token in lists, logs and messages."""
    text: str = field(repr=False)

    @classmethod
    def new(cls, scope: Scope) -> "Token":
        """A fresh one, from the system's randomness."""
        name = "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
        secret = "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(_SECRET_LENGTH))
        return cls(scope, name, f"gw_{scope}_{name}_{secret}")

    @classmethod
    def parse(cls, text: str) -> "Token":
        """Raises ValueError, whose message does not have the text in it."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            raise ValueError("this is no gpuwarden token: they begin with gw_")
        return cls(Scope(found[1]), found[2], text)

    @property
    def digest(self) -> str:
        """What is stored of it."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_token(path: Path) -> Token:
    """The token that a file holds, and nothing else. Raises ValueError: one line with the path."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: this is no gpuwarden token: they begin with gw_") from error
    except OSError as error:
        raise ValueError(f"{path}: the token cannot be read: {error.strerror}") from error
    try:
        return Token.parse(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def allows(held: Scope, needed: Scope) -> bool:
    """Whether a token of scope `held` is enough."""
    return held is needed or held is Scope.ADMIN


@lru_cache(maxsize=64)
def is_local_name(host: str) -> bool:
    """Whether no page of the web can have a name that leads here: an address, or localhost."""
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
