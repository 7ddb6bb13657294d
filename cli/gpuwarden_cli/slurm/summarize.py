"""Writes what each ended job used into its AdminComment, and mails it to its owner: `gpuwarden slurm summarize`.

A job that has a comment in Slurm's accounting is done. So a round can be repeated at any time, also after a restart.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.query import QueryError
from gpuwarden_cli.job_report import JobReport, read
from gpuwarden_cli.job_summary import SHORT_S, comment, screen
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.settings import notify_of
from gpuwarden_client.http import CallError

SETTLED_S = 20
"""Wait after a job's end, as its last rows arrive some seconds later."""
TIMEOUT_S = 30.0
"""Timeout of a Slurm command."""
COMMENTS = ("-n", "-P", "-o", "JobIDRaw,AdminComment")
"""Flags of sacct for `parse_comments`."""
ENDED = "CD,F,TO,CA,NF,OOM,DL,PR,BF"
_JOBS = """
SELECT job FROM slurm_job_samples
WHERE ts > now()::TIMESTAMP - to_seconds($since_s::BIGINT) AND ended_at > now()::TIMESTAMP - to_seconds($since_s::BIGINT)
GROUP BY job
HAVING max(ended_at) < now()::TIMESTAMP - to_seconds($settled_s::BIGINT)
ORDER BY max(ended_at), job
"""

Run = Callable[[Sequence[str]], str]
"""Runs a Slurm command and gives its output. Raises StartError."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpuwarden slurm summarize`."""
    parser.add_argument(
        "--every",
        type=_seconds,
        metavar="S",
        help="repeat with this many seconds between rounds (default: one round)",
    )
    parser.add_argument(
        "--since",
        type=_seconds,
        default=3600,
        metavar="S",
        help="jobs that ended within this many seconds (default 3600)",
    )
    parser.add_argument(
        "--mail",
        metavar="RECEIVER",
        help="also mail the report, by this apprise receiver with {owner} in its address",
    )
    parser.add_argument(
        "--notify-file",
        type=Path,
        default=Path("/etc/gpuwarden/notify.yaml"),
        metavar="FILE",
        help="file of receivers and owners (default /etc/gpuwarden/notify.yaml)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the jobs, write nothing")
    parser.add_argument("--url", help="the collector (default GPUWARDEN_URL, else this machine's)")


def _seconds(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 30 * 86400:
        raise argparse.ArgumentTypeError(f"{text} must be between 1 and 2592000")
    return value


def run_slurm(argv: Sequence[str]) -> str:
    """Run a Slurm command; its output. Raises StartError."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise StartError(f"{argv[0]} did not answer within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise StartError(
            f"{argv[0]}: {error.strerror}; run it on a host with Slurm's commands"
        ) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise StartError(f"{argv[0]}: {said[-1].strip()}")
    return done.stdout


def parse_comments(text: str) -> dict[str, str]:
    """Comment by job, from sacct's "JobIDRaw|AdminComment" lines; "" for no comment."""
    pairs = (line.partition("|") for line in text.splitlines())
    return {job: said for job, bar, said in pairs if bar and job.isdigit()}


@dataclass(slots=True)
class CommentWriter:
    """Writes comments in a form that this version of Slurm keeps."""

    run: Run
    keeps_case: bool | None = None
    """Whether sacctmgr keeps upper case; None: not tried yet."""

    def write(self, report: JobReport) -> str:
        """Write the comment of a job; the stored text. Raises StartError."""
        text = comment(report, keeps_case=self.keeps_case is not False)
        self._set(report.job, text)
        if self.keeps_case is None:
            kept = self._get(report.job)
            self.keeps_case = kept == text
            if kept.lower() != text.lower():
                raise StartError(
                    f"job {report.job}: sacct does not have the comment that sacctmgr took"
                )
            if not self.keeps_case:
                text = comment(report, keeps_case=False)
                self._set(report.job, text)
        return text

    def _set(self, job: str, text: str) -> None:
        change = ("modify", "job", "where", f"jobid={job}", "set", f"AdminComment={text}")
        self.run(("sacctmgr", "-i", "-Q", *change))

    def _get(self, job: str) -> str:
        said = self.run(("sacct", "-X", "-j", job, *COMMENTS))
        return parse_comments(said).get(job, "")


Mail = Callable[[JobReport], str | None]
"""Mails a report; the problem, or None."""


def mail_by(receiver: str, path: Path) -> Mail:
    """A function that mails a report to the job's owner by a receiver of the file. Raises StartError."""
    from gpuwarden_rules.notify.receivers.apprise_service import OWNER, send_text
    from gpuwarden_rules.notify.receivers.receiver import Delivered

    notify = notify_of(path)
    plan = next((one for one in notify.receivers if one.name == receiver), None)
    if plan is None or plan.kind != "apprise" or OWNER not in plan.target:
        raise StartError(
            f"{path}: --mail {receiver} must be an apprise receiver with {OWNER} in its address"
        )

    def send(report: JobReport) -> str | None:
        address = notify.policy.owners.address(report.facts.get("username"))
        name = report.facts.get("job_name")
        title = f"Job {report.job}{f' ({name})' if name else ''}: {report.facts.get('state') or 'ended'}"
        outcome = send_text(plan.target, address, title, screen(report))
        return None if isinstance(outcome, Delivered) else outcome.reason

    return send


def done_once(
    ended: Sequence[str],
    comments: Mapping[str, str],
    report_of: Callable[[str], JobReport | None],
    writer: CommentWriter,
    mail: Mail | None,
    say: Callable[[str], None],
) -> int:
    """Comment and mail the jobs without a comment; the number of comments. A failure does not stop the others."""
    count = 0
    for job in ended:
        if comments.get(job) != "":
            continue  # it has a comment, or is not in the accounting yet
        try:
            report = report_of(job)
            if report is None:
                continue
            text = writer.write(report)
        except (StartError, CallError, QueryError) as error:
            say(f"job {job}: {error}")
            continue
        count += 1
        say(f"job {job}: {text[:40]}{'...' if len(text) > 40 else ''}")
        if mail is None or report.seconds < SHORT_S:
            continue
        if (problem := mail(report)) is not None:
            say(f"job {job}: not mailed: {problem}")
    return count


def run(args: argparse.Namespace) -> int:
    """Run one round, or a round each --every."""
    from gpuwarden_client.http import ask

    querier, clock, writer = RemoteQuerier(args.url), SystemClock(), CommentWriter(run_slurm)
    mail = mail_by(args.mail, args.notify_file) if args.mail else None

    def round_once() -> None:
        params = {"since_s": args.since, "settled_s": SETTLED_S}
        ended = [row[0] for row in ask(_JOBS, params, url=args.url).rows]
        since = f"now-{args.since + 600}seconds"
        which = ("-a", "-X", "-S", since, "-E", "now", "-s", ENDED)
        listed = run_slurm(("sacct", *which, *COMMENTS))
        comments = parse_comments(listed)
        if args.dry_run:
            for job in ended:
                print(f"{job} {'has no comment' if comments.get(job) == '' else 'is skipped'}")
            return
        done_once(
            ended,
            comments,
            lambda job: asyncio.run(read(querier, job, clock.now(), short_s=SHORT_S)),
            writer,
            mail,
            print,
        )

    while True:
        try:
            round_once()
        except (StartError, CallError) as error:
            if args.every is None:
                raise
            print(f"gpuwarden: {error}; tried again", file=sys.stderr, flush=True)
        if args.every is None:
            return 0
        sys.stdout.flush()
        time.sleep(args.every)
