"""Which jobs get a comment and a mail, and what is done where Slurm or a mail server will not."""

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_cli.job_report import JobReport
from gpuwarden_cli.job_summary import parse_comment, summary
from gpuwarden_cli.slurm.summarize import CommentWriter, done_once, mail_by

BEGIN = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)


def report(job: str) -> JobReport:
    return JobReport(
        job,
        {"username": "ada", "state": "completed", "job_name": "train"},
        BEGIN,
        BEGIN + timedelta(hours=1),
        (),
    )


class Accounting:
    """sacctmgr and sacct with their comments."""

    def __init__(self, *, lowers: bool = False) -> None:
        self.lowers = lowers
        self.comments: dict[str, str] = {}
        self.writes = 0

    def __call__(self, argv: Sequence[str]) -> str:
        if argv[0] == "sacct":
            asked = argv[argv.index("-j") + 1]
            return f"{asked}|{self.comments.get(asked, '')}\n"
        self.writes += 1
        job, text = argv[6].removeprefix("jobid="), argv[8].removeprefix("AdminComment=")
        if job == "13":
            raise StartError("sacctmgr: Access/permission denied")
        self.comments[job] = text.lower() if self.lowers else text
        return ""


@pytest.mark.parametrize("lowers", [False, True])
def test_a_comment_survives_a_slurm_that_lowers_it(lowers: bool) -> None:
    accounting = Accounting(lowers=lowers)
    writer = CommentWriter(accounting)
    for job in ("1", "2"):
        writer.write(report(job))
        assert parse_comment(accounting.comments[job]) == summary(report(job))
    assert writer.keeps_case is not lowers
    assert accounting.writes == (3 if lowers else 2), "tried once"


def test_those_without_a_comment_get_one_and_one_that_fails_stops_nobody() -> None:
    accounting, said, mailed = Accounting(), [], []

    def mail(made: JobReport) -> str | None:
        mailed.append(made.job)
        return "no answer" if made.job == "5" else None

    comments = {"1": "", "2": "a person's words", "13": "", "4": "", "5": ""}
    reports = {job: report(job) for job in ("1", "2", "3", "13", "5")}
    count = done_once(
        ["1", "2", "3", "13", "4", "5"],
        comments,
        reports.get,
        CommentWriter(accounting),
        mail,
        said.append,
    )
    assert count == 2 and sorted(accounting.comments) == ["1", "5"] == mailed
    assert said[1:3:1] == ["job 13: sacctmgr: Access/permission denied", said[2]]
    assert said[-1] == "job 5: not mailed: no answer"


def test_mail_needs_a_receiver_that_is_somebodys_own(tmp_path: Path) -> None:
    path = tmp_path / "notify.yaml"
    path.write_text("receivers:\n  - {name: all, apprise: 'json://127.0.0.1:9/'}\n")
    with pytest.raises(
        StartError, match="--mail all must be an apprise receiver with {owner} in its address"
    ):
        mail_by("all", path)
    path.write_text(
        "receivers:\n  - {name: own, apprise: 'json://127.0.0.1:9/{owner}'}\nowners: {address: '{user}@example.org'}\n"
    )
    problem = mail_by("own", path)(report("7"))
    assert problem is not None and "ada@example.org" not in problem


def test_the_report_goes_to_the_jobs_user(tmp_path: Path) -> None:
    got: list[tuple[str, dict[str, Any]]] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Taker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = tmp_path / "notify.yaml"
        path.write_text(
            f"receivers:\n  - {{name: own, apprise: 'json://127.0.0.1:{server.server_port}/{{owner}}'}}\n"
            "owners: {address: '{user}@example.org'}\n"
        )
        assert mail_by("own", path)(report("7")) is None
        server.shutdown()
    ((place, sent),) = got
    assert place.rstrip("/") == "/ada@example.org" and sent["title"] == "Job 7 (train): completed"
    assert "Run time: 1:00:00" in sent["message"]
