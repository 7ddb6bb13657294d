"""Enrols this node: makes its token and sends the hash of it to the collector: `gpuwarden enroll`.

Each step can be repeated. A token that waits for the collector's answer is kept beside its final path, so a lost
answer costs nothing, and an enrolled node stays as it is.
"""

import argparse
import hashlib
import hmac
import json
import os
import pwd
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden.access import CA_PATH, ENROLL_PATH, TOKEN_PATH, Scope, Token, read_token
from gpuwarden.files import Owner, make_folder, write_whole
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import load
from gpuwarden.wire import error_sentence
from gpuwarden_cli.parser import Commands, add_command
from gpuwarden_cli.settings import set_keys

if TYPE_CHECKING:
    from gpuwarden_agent.settings import AgentSettings

TIMEOUT_S = 20.0
ANSWER_BYTES_MAX = 65_536


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    parser = add_command(
        commands, "enroll", run, "enrol this node with a collector",
        "`gpuwarden token enrolment` on the collector's host prints the line to run. The one-time token comes"
        " from GPUWARDEN_TOKEN, or --token-file.",
    )  # fmt: skip
    parser.add_argument("--collector", required=True, metavar="URL", help="the collector's address")
    parser.add_argument(
        "--ca-fingerprint", metavar="sha256:HEX", help="fingerprint of its CA, if it has its own"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="the one-time token; - for stdin"
    )
    parser.add_argument(
        "--token", help="the one-time token; other users can see it in the process list"
    )
    parser.add_argument(
        "--node", metavar="NAME", help="default: as agent.toml says, or the host's name"
    )
    parser.add_argument(
        "--config", type=Path, default=Path("/etc/gpuwarden/agent.toml"), metavar="FILE",
        help="settings of the agent (default /etc/gpuwarden/agent.toml)",
    )  # fmt: skip
    parser.add_argument(
        "--if-new", action="store_true", help="do nothing where the node has a token"
    )
    parser.add_argument(
        "--user", default="gpuwarden", help="owner of the files (default gpuwarden)"
    )
    parser.add_argument("--allow-insecure", action="store_true", help="also without TLS")


class EnrolmentRefusedError(StartError):
    """The collector refused the request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class EnrolmentFiles:
    """The files of this node's enrolment."""

    config: Path
    token: Path
    ca: Path
    owner: Owner | None

    @property
    def pending(self) -> Path:
        """A token that the collector may not have accepted yet."""
        return self.token.with_name(f"{self.token.name}.new")


def run(args: argparse.Namespace) -> int:
    """Enrol, and print what was done. Raises StartError."""
    settings = _settings(args)
    folder = args.config.parent
    place = EnrolmentFiles(
        args.config,
        settings.token_file or folder / "agent.token",
        settings.tls_ca or folder / "ca.pem",
        _owner(args.user),
    )
    node = args.node or settings.node_name
    if args.if_new and place.token.exists():
        print(f"{node} has its token: {place.token}")
        return 0
    base = _base(args.collector, is_insecure=args.allow_insecure)
    ca = _fetched_ca(base, args.ca_fingerprint) if args.ca_fingerprint else None
    link = CollectorConnection(base, _context(ca, settings.tls_ca))
    try:
        is_new = not _is_enrolled(link, place, node)
        if is_new:
            make_folder(place.token.parent)
            _enroll(link, place, node, _one_time_token(args))
        if ca is not None and _content(place.ca) != ca:
            write_whole(place.ca, ca, owner=place.owner)
    except OSError as error:
        raise StartError(f"{error.filename or place.token}: {error.strerror}") from error
    is_changed = _configure(settings, args, place, base, has_ca=ca is not None)
    print(f"{node} is enrolled at {base}" if is_new else f"{node} was enrolled at {base} before")
    print(f"  token   {place.token}")
    if ca is not None:
        print(f"  CA      {place.ca}")
    print(f"  config  {place.config}{'' if is_changed else ' (as it was)'}")
    if is_new or is_changed:
        print("  next    systemctl restart gpuwarden-agent")
    return 0


class CollectorConnection:
    """HTTP requests to the collector."""

    def __init__(self, base: str, context: ssl.SSLContext) -> None:
        self.base = base
        self._context = context

    def ask(
        self, method: str, path: str, token: Token | None = None, document: Any = None
    ) -> bytes:
        """Body of the answer. Raises EnrolmentRefusedError, and StartError when no collector answers."""
        from urllib.error import HTTPError, URLError
        from urllib.request import Request

        from gpuwarden.http_client import opener

        body = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        request = Request(self.base + path, data=body, method=method, headers=headers)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token.text}")
        # Like the agent, ignore a proxy of the environment.
        ours = opener(self._context, uses_proxy=False)
        try:
            with ours.open(request, timeout=TIMEOUT_S) as answer:
                return bytes(answer.read(ANSWER_BYTES_MAX))
        except HTTPError as error:
            raise EnrolmentRefusedError(error.code, _said(error)) from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise StartError(f"{self.base}: {_why(reason)}") from error


def _why(reason: object) -> str:
    from gpuwarden_agent.ship.credentials import why_refused

    if isinstance(reason, ssl.SSLCertVerificationError):
        return why_refused(reason)
    if isinstance(reason, ssl.SSLError):
        return f"it does not speak TLS ({reason.reason})"
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return f"no collector answers there ({text.lower()})"


def _said(error: Any) -> str:
    with suppress(OSError):
        if sentence := error_sentence(error.read(ANSWER_BYTES_MAX)):
            return sentence
    return f"{error.url} answered {error.code} {error.reason}"


def _settings(args: argparse.Namespace) -> "AgentSettings":
    from gpuwarden_agent.settings import AgentSettings

    path = args.config if args.config.exists() else None
    return load(AgentSettings, "agent", path=path).settings


def _owner(user: str) -> Owner | None:
    """Owner of the files: the agent's user if it exists and root enrols, else None."""
    if os.geteuid() != 0:
        return None
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return os.geteuid(), os.getegid()
    return found.pw_uid, found.pw_gid


def _base(url: str, *, is_insecure: bool) -> str:
    base = url.rstrip("/")
    if base.startswith("https://") or (is_insecure and base.startswith("http://")):
        return base
    raise StartError(
        f"--collector {url} must begin with https:// (with --allow-insecure http:// too, and anyone between"
        " can read the token)"
    )


def _fetched_ca(base: str, fingerprint: str) -> bytes:
    """The CA certificate, over an unverified connection; the fingerprint verifies it."""
    blind = ssl.create_default_context()
    blind.check_hostname = False
    blind.verify_mode = ssl.CERT_NONE
    found = CollectorConnection(base, blind).ask("GET", CA_PATH)
    try:
        der = ssl.PEM_cert_to_DER_cert(found.decode("ascii").strip())
    except (ValueError, UnicodeDecodeError) as error:
        raise StartError(f"{base}{CA_PATH} does not answer with one certificate") from error
    actual, wanted = hashlib.sha256(der).hexdigest(), fingerprint.strip().removeprefix("sha256:")
    if not hmac.compare_digest(actual.encode(), wanted.replace(":", "").lower().encode()):
        raise StartError(
            f"{base} has another authority than --ca-fingerprint names (sha256:{actual}): another host intercepts"
            " the connection, or the line is outdated; nothing was sent"
        )
    return ssl.DER_cert_to_PEM_cert(der).encode()


def _context(ca: bytes | None, known: Path | None) -> ssl.SSLContext:
    """A context that trusts the CA of the fingerprint, else the configured CA, else the system's."""
    try:
        if ca is not None:
            context = ssl.create_default_context(cadata=ca.decode())
        else:
            context = ssl.create_default_context(cafile=known if known and known.exists() else None)
    except OSError as error:
        raise StartError(
            f"{known or 'the authority'}: there is no certificate in PEM form"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _is_enrolled(link: CollectorConnection, place: EnrolmentFiles, node: str) -> bool:
    """Whether the token file has a valid token of this node."""
    if not place.token.exists():
        return False
    try:
        answer = json.loads(link.ask("GET", TOKEN_PATH, read_token(place.token)))
    except EnrolmentRefusedError:
        return False
    except ValueError:
        return False  # the file has no token
    return bool(answer.get("scope") == Scope.INGEST and answer.get("node") == node)


def _one_time_token(args: argparse.Namespace) -> Token:
    """The token of --token, a file, standard input or the environment. Raises StartError."""
    try:
        if args.token_file is not None and str(args.token_file) != "-":
            return read_token(args.token_file)
        is_piped = args.token_file is not None
        text = sys.stdin.read() if is_piped else args.token or os.environ.get("GPUWARDEN_TOKEN", "")
        if not text:
            raise StartError(
                "no token: `gpuwarden token enrolment` on the collector's host makes the whole line"
            )
        token = Token.parse(text.strip())
    except ValueError as error:
        raise StartError(str(error)) from error
    return token


def _enroll(link: CollectorConnection, place: EnrolmentFiles, node: str, one_time: Token) -> None:
    """Make this node's token and register it at the collector. Raises StartError, OSError."""
    own = _left_or_new(place.pending)
    write_whole(place.pending, f"{own.text}\n".encode(), owner=place.owner)
    document = {"node": node, "id": own.id, "sha256": own.digest}
    try:
        link.ask("POST", ENROLL_PATH, one_time, document)
    except EnrolmentRefusedError as error:
        if error.status in (400, 401, 403, 409):
            place.pending.unlink(missing_ok=True)
        raise
    place.pending.replace(place.token)


def _left_or_new(path: Path) -> Token:
    """The pending token of an earlier try, else a new one."""
    try:
        return read_token(path)
    except ValueError:
        return Token.new(Scope.INGEST)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _configure(
    settings: "AgentSettings",
    args: argparse.Namespace,
    place: EnrolmentFiles,
    base: str,
    *,
    has_ca: bool,
) -> bool:
    """Write the agent's settings; whether they changed."""
    values = {"token_file": str(place.token.absolute())}
    if has_ca:
        values["tls_ca"] = str(place.ca.absolute())
    if len(settings.collectors) < 2:
        values["collector_url"] = base
    elif base not in settings.collectors:
        print(f"gpuwarden: {base} is not in collector_url of {place.config}", file=sys.stderr)
    if args.node:
        values["node"] = args.node
    return set_keys(place.config, values)
