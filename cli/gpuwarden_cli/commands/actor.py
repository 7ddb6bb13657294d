"""Runs the process that does what policies ask for: `gpuwarden actor run`."""

import argparse
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.parser import Commands, add_command, add_group, add_url
from gpuwarden_client.http import CallError, RefusedError, call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwarden_cli.actor.acts import Scheduler
    from gpuwarden_cli.actor.run import Actor

log = logging.getLogger(__name__)

POLL_S = 5.0
KINDS = (
    "cancel_job", "requeue_job", "drain_node", "reboot_node", "resume_node", "delete_pod", "cordon_node",
    "call_webhook", "run_command",
)  # fmt: skip


def add_commands(commands: Commands) -> None:
    """Add the commands to the parser."""
    group = add_group(
        commands, "actor", "do what policies ask for, where the scheduler's rights are"
    )
    parser = add_command(
        group, "run", _run, "fetch acts from the collector, do each once, check it, and report it",
        "Its token has scope act. Nothing is done that --allow does not name.",
    )  # fmt: skip
    parser.add_argument("--allow", action="append", required=True, choices=KINDS, help="an act that it may do; may be repeated")  # fmt: skip
    parser.add_argument("--journal", type=Path, default=Path("/var/lib/gpuwarden-actor/acts.jsonl"), metavar="FILE", help="what was begun and how it ended (default /var/lib/gpuwarden-actor/acts.jsonl)")  # fmt: skip
    parser.add_argument("--an-hour", type=int, default=20, metavar="N", help="most acts in any hour (default 20)")  # fmt: skip
    parser.add_argument("--stop-file", type=Path, default=Path("/etc/gpuwarden/actor.stop"), metavar="FILE", help="while it is there nothing is done (default /etc/gpuwarden/actor.stop)")  # fmt: skip
    parser.add_argument("--webhook", metavar="URL", help="of call_webhook: gets the act as JSON")
    parser.add_argument("--webhook-token-file", type=Path, metavar="FILE", help="its bearer token")
    parser.add_argument("--command", type=Path, metavar="PATH", help="of run_command: gets the act as JSON on standard input")  # fmt: skip
    parser.add_argument("--command-runs", action="append", type=Path, default=[], metavar="PATH", help="a program that the command starts, such as /usr/bin/systemctl; may be repeated")  # fmt: skip
    parser.add_argument("--node", help="fetch only acts of this node")
    parser.add_argument("--once", action="store_true", help="do what is asked for now, and end")
    add_url(parser)


def _run(args: argparse.Namespace) -> int:
    """Run until SIGTERM. Raises StartError."""
    from gpuwarden_cli.actor.journal import Journal, JournalError
    from gpuwarden_cli.actor.run import Actor, Allowed

    if args.an_hour < 1:
        raise StartError(f"--an-hour {args.an_hour} must be at least 1")
    logs.setup("info", "text")
    try:
        journal = Journal(args.journal)
    except JournalError as error:
        raise StartError(str(error)) from error
    allowed = Allowed(frozenset(args.allow), args.an_hour, args.stop_file)
    actor = Actor(_schedulers(args), journal, allowed, SystemClock())
    _confine(args.journal.parent, [*([args.command] if args.command else []), *args.command_runs])
    ending = _Ending()
    log.info(
        "actor runs",
        extra={"allowed": ", ".join(sorted(allowed.kinds)), "journal": str(args.journal)},
    )
    while not ending.is_asked:
        try:
            _turn(actor, args)
        except CallError as error:
            if args.once:
                raise
            log.warning("the collector does not answer", extra={"reason": str(error)})
        except JournalError as error:
            log.error("nothing is done", extra={"reason": str(error)})
        if args.once:
            break
        ending.wait(POLL_S)
    journal.close()
    return 0


def _schedulers(args: argparse.Namespace) -> "Sequence[Scheduler]":
    """What does the allowed acts. Raises StartError."""
    from gpuwarden_cli.actor import site
    from gpuwarden_cli.actor.kubernetes import Kubernetes
    from gpuwarden_cli.actor.slurm import Slurm

    needs = {
        "call_webhook": ("--webhook", args.webhook),
        "run_command": ("--command", args.command),
    }
    for kind, (option, value) in needs.items():
        if kind in args.allow and not value:
            raise StartError(f"--allow {kind} needs {option}")
    found: list[Scheduler] = [Slurm(), Kubernetes(SystemClock())]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        found.reverse()
    if args.webhook:
        found.append(site.SiteWebhook(args.webhook, args.webhook_token_file))
    if args.command:
        found.append(site.SiteCommand(args.command))
    return found


def _confine(folder: Path, commands: "Sequence[Path]" = ()) -> None:
    """Let the kernel keep this process to Slurm's commands, those of the site and the journal's folder.

    Raises StartError.
    """
    from gpuwarden_cli.actor.slurm import COMMANDS
    from gpuwarden_collector.processes.sandbox import Needs, confine_files, loaders, runs_with

    slurm = [Path(path) for name in COMMANDS if (path := shutil.which(name))]
    try:
        programs = [each for path in (*slurm, *commands) for each in runs_with(path.resolve())]
    except OSError as error:
        raise StartError(
            f"{error.filename}: {error.strerror}: this user must be able to read it"
        ) from error
    needs = Needs(
        (Path("/"),), (folder, Path("/dev/null")), network=True, executable=(*programs, *loaders())
    )
    held = confine_files(needs)
    if "landlock" not in held:
        log.warning("the kernel has no Landlock: only this user's rights confine the actor")


def _turn(actor: "Actor", args: argparse.Namespace) -> None:
    """Fetch acts, do them, and report. Raises CallError, JournalError."""
    from gpuwarden_cli.actor.run import acts_of

    asked = [("kind", kind) for kind in args.allow] + ([("node", args.node)] if args.node else [])
    for act in acts_of(call("GET", f"/v1/acts?{urlencode(asked)}", url=args.url)):
        # Each is reported before the next begins.
        for report in actor.work([act]):
            document = {"is_done": report.is_done, "note": report.note}
            try:
                call("POST", f"/v1/acts/{report.act}", document, url=args.url)
            except RefusedError as error:
                log.warning(
                    "a report was refused", extra={"case": report.act, "reason": str(error)}
                )


class _Ending:
    """Whether SIGTERM or SIGINT came; an act that has begun is ended first."""

    def __init__(self) -> None:
        self.is_asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True

    def wait(self, seconds: float) -> None:
        """Sleep, at most until a signal."""
        until = time.monotonic() + seconds
        while not self.is_asked and time.monotonic() < until:
            time.sleep(0.1)
