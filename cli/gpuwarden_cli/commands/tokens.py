"""Creates, lists, revokes and rotates tokens in the collector's token file: `gpuwarden token`. Runs on its host."""

import argparse
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.access import Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden.durations import seconds_of
from gpuwarden.files import write_whole
from gpuwarden.lifecycle import StartError
from gpuwarden.node_name import NodeNameError, check_node_name
from gpuwarden_cli.parser import Commands, add_command, add_format, add_group
from gpuwarden_cli.settings import collector_settings

if TYPE_CHECKING:
    from gpuwarden_collector.auth.token_store import TokenStore
    from gpuwarden_collector.settings import CollectorSettings

YEARS_MAX = 100
OLD_KEPT = timedelta(days=30)
"""How long an expired or revoked token stays in the list."""


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(
        commands, "token", "create, list and revoke tokens of the collector on this host"
    )
    parser = add_command(group, "create", _create, "create a token and show it once")
    parser.add_argument(
        "--scope",
        required=True,
        choices=("ingest", "read", "edit", "operate", "admin", "act", "copy"),
        help="what it allows",
    )
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--node", metavar="NAME", help="the node whose rows it may send (ingest)")
    whose.add_argument(
        "--any-node", action="store_true", help="rows of any node, as for imports (ingest)"
    )
    parser.add_argument(
        "--expires", metavar="TIME", help="lifetime, such as 90d (default: unlimited)"
    )
    parser.add_argument("--team", metavar="NAME", help="the team of access_file whose rows it sees")
    parser.add_argument("--comment", default="", metavar="TEXT", help="who uses it, for the list")
    _add_out(parser)
    parser = add_command(group, "list", _list, "list tokens, without their secrets")
    add_format(parser)
    _add_store(parser)
    parser = add_command(group, "revoke", _revoke, "revoke tokens; takes effect within seconds")
    parser.add_argument("ids", nargs="*", metavar="ID", help="as `gpuwarden token list` shows it")
    parser.add_argument("--person", metavar="NAME", help="all sessions of who signed in as NAME")
    _add_store(parser)
    parser = add_command(group, "rotate", _rotate, "replace a token by a new one")
    parser.add_argument("id", metavar="ID", help="as `gpuwarden token list` shows it")
    parser.add_argument(
        "--grace",
        default="1h",
        metavar="TIME",
        help="how long the old one stays valid (default 1h)",
    )
    _add_out(parser)
    parser = add_command(
        group,
        "enrolment",
        _enrolment,
        "print the command that enrols a node: `gpuwarden enroll ...`",
    )
    parser.add_argument("--valid", default="1h", metavar="TIME", help="for how long (default 1h)")
    parser.add_argument(
        "--uses", type=int, default=1, metavar="N", help="for how many nodes (default 1)"
    )
    parser.add_argument(
        "--known-nodes",
        action="store_true",
        help="also for nodes that have rows and no token, such as one whose token was revoked",
    )
    parser.add_argument(
        "--collector", metavar="URL", help="the collector's address (default: by its certificate)"
    )
    _add_store(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="TOML file of the collector")
    parser.add_argument("--data-dir", metavar="DIR", help="data folder")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write it to this file (mode 0600) instead of showing it",
    )
    _add_store(parser)


def _changed(
    args: argparse.Namespace, change: "Callable[[TokenStore, datetime], TokenStore]"
) -> None:
    """Change the token file. Raises StartError."""
    from gpuwarden_collector.auth.access_control import tokens_path
    from gpuwarden_collector.auth.token_file import TokenFileError, edit
    from gpuwarden_collector.auth.token_store import TokenStoreError

    now = SystemClock().now().replace(microsecond=0)
    try:
        edit(
            tokens_path(collector_settings(args)),
            lambda store: (change(store.without_old(now, OLD_KEPT), now), None),
        )
    except (TokenStoreError, TokenFileError) as error:
        raise StartError(str(error)) from error


def _give(token: "Token", out: Path | None) -> int:
    """Print a token once, or write it to a file."""
    if out is None:
        print(token.text)
        print(
            f"this is shown once; revoke it with `gpuwarden token revoke {token.id}`",
            file=sys.stderr,
        )
        return 0
    try:
        write_whole(out, f"{token.text}\n".encode())
    except OSError as error:
        raise StartError(
            f"{out}: {error.strerror}: the token {token.id} was made but not stored; revoke it"
        ) from error
    print(f"token {token.id} is in {out}")
    return 0


def _create(args: argparse.Namespace) -> int:
    from gpuwarden_collector.auth.token_store import TokenEntry, scram_of

    scope = Scope(args.scope)
    if (scope is Scope.INGEST) != bool(args.node or args.any_node):
        raise StartError(
            "--scope ingest needs --node NAME or --any-node, and no other scope has them"
        )
    if args.node is not None:
        try:
            check_node_name(args.node)
        except NodeNameError as error:
            raise StartError(f"--node: {error}") from error
    if args.team is not None:
        _check_team(args, scope)
    lasts = _time(args.expires, "--expires") if args.expires else None
    token = Token.new(scope)

    def change(store: "TokenStore", now: datetime) -> "TokenStore":
        ends_at = None if lasts is None else now + lasts
        entry = TokenEntry(
            token.id,
            scope,
            token.digest,
            now,
            args.node,
            expires_at=ends_at,
            comment=args.comment,
            team=args.team,
            scram=scram_of(token),
        )
        return store.with_entry(entry)

    _changed(args, change)
    return _give(token, args.out)


def _check_team(args: argparse.Namespace, scope: Scope) -> None:
    """Raise StartError for a token that cannot have the team."""
    from gpuwarden_collector.auth.access_file import AccessFileError, load_access

    if scope not in (Scope.READ, Scope.EDIT, Scope.OPERATE):
        raise StartError(f"--scope {scope} is for all teams: leave out --team")
    path = collector_settings(args).access_file
    try:
        teams = load_access(path).teams
    except AccessFileError as error:
        raise StartError(str(error)) from error
    if args.team not in teams:
        known = ", ".join(sorted(teams)) or "none"
        raise StartError(
            f"access_file ({path or 'not set'}) has no team {args.team}: it has {known}"
        )


def _list(args: argparse.Namespace) -> int:
    from gpuwarden_cli.output import render
    from gpuwarden_collector.auth.access_control import tokens_path
    from gpuwarden_collector.auth.token_file import TokenFileError, last_used, load

    path = tokens_path(collector_settings(args))
    try:
        entries, used = load(path).entries, last_used(path)
    except TokenFileError as error:
        raise StartError(str(error)) from error
    now = SystemClock().now()
    rows = [
        [
            e.id,
            str(e.scope),
            e.node,
            e.team,
            "over" if e.is_over(now) else "used up" if e.uses_left == 0 else "valid",
            _instant(e.created_at),
            _instant(e.expires_at),
            _instant(used.get(e.id)),
            e.uses_left,
            e.comment or None,
        ]
        for e in entries
    ]
    columns = [
        "id",
        "scope",
        "node",
        "team",
        "state",
        "created",
        "expires",
        "last used",
        "uses left",
        "comment",
    ]
    print(render(columns, rows, args.format), end="")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    if bool(args.ids) == (args.person is not None):
        raise StartError("give ids of tokens, or --person NAME")
    revoked = list(args.ids)

    def change(store: "TokenStore", _now: datetime) -> "TokenStore":
        if args.person is not None:
            revoked[:] = [entry.id for entry in store.sessions_of(args.person)]
            if not revoked:
                raise StartError(
                    f"nobody is signed in as {args.person}: `gpuwarden token list` shows who is"
                )
        return store.revoked(revoked)

    _changed(args, change)
    print(f"revoked: {', '.join(revoked)}")
    return 0


def _rotate(args: argparse.Namespace) -> int:

    grace = _time(args.grace, "--grace")
    made: list[Token] = []

    def change(store: "TokenStore", now: datetime) -> "TokenStore":
        old = store.get(args.id)
        if old is None:
            raise StartError(f"there is no token {args.id}: `gpuwarden token list` shows all")
        made.append(Token.new(old.scope))
        return store.rotated(args.id, made[0], now, grace)

    _changed(args, change)
    return _give(made[0], args.out)


def _enrolment(args: argparse.Namespace) -> int:
    from gpuwarden_collector.auth.exposure import exposure_of
    from gpuwarden_collector.auth.token_store import TokenEntry

    settings = collector_settings(args)
    lasts = _time(args.valid, "--valid")
    if args.uses < 1:
        raise StartError(f"--uses {args.uses} must be at least 1")
    if not exposure_of(settings).asks_tokens:
        read = f"{args.config} requires" if args.config else "settings without --config require"
        raise StartError(
            f"{read} no tokens: if the collector has another settings file, name it with --config; "
            "else its agents need no enrolment, and `gpuwarden collector init` opens it to other hosts"
        )
    url, fingerprint = args.collector or _address(settings), _fingerprint(settings)
    token = Token.new(Scope.ENROLL)

    def change(store: "TokenStore", now: datetime) -> "TokenStore":
        entry = TokenEntry(
            token.id,
            Scope.ENROLL,
            token.digest,
            now,
            expires_at=now + lasts,
            uses_left=args.uses,
            known_nodes=args.known_nodes,
        )
        return store.with_entry(entry)

    _changed(args, change)
    pin = f" --ca-fingerprint {fingerprint}" if fingerprint else ""
    if not url.startswith("https:"):
        pin = " --allow-insecure"
    # The environment is hidden from other users of the node; the process list is not.
    print(f"GPUWARDEN_TOKEN={token.text} gpuwarden enroll --collector {url}{pin}")
    nodes = "one node" if args.uses == 1 else f"{args.uses} nodes"
    print(f"run it as root on the node; it is good for {nodes} and {args.valid}", file=sys.stderr)
    return 0


def _address(settings: "CollectorSettings") -> str:
    """URL of the collector, with the first name of its certificate. Raises StartError."""
    from gpuwarden_collector.auth.tls import certificate_of

    if settings.tls_cert is None:
        raise StartError(
            "the collector has no TLS: run `gpuwarden collector init`, or say its address with --collector"
        )
    try:
        names = certificate_of(settings.tls_cert).names
    except ValueError as error:
        raise StartError(f"{error}: see tls_cert") from error
    if not names:
        raise StartError(f"{settings.tls_cert} has no names: say the address with --collector")
    host = f"[{names[0]}]" if ":" in names[0] else names[0]
    return f"https://{host}:{settings.port}"


def _fingerprint(settings: "CollectorSettings") -> str | None:
    from gpuwarden_collector.auth.tls import certificate_of

    if settings.tls_ca is None:
        return None
    try:
        return certificate_of(settings.tls_ca).fingerprint
    except ValueError as error:
        raise StartError(f"{error}: see tls_ca") from error


def _time(text: str, flag: str) -> timedelta:

    seconds = seconds_of(text)
    if seconds is None or not 0 <= seconds <= YEARS_MAX * 366 * 86_400:
        raise StartError(
            f"{flag} {text}: say how long as 30m, 2h or 90d, at most {YEARS_MAX} years"
        )
    return timedelta(seconds=seconds)


def _instant(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%d %H:%M:%SZ}"
