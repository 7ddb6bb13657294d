"""Acts by the site's own programs: asked once, checked, refused where something else would be met."""

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.actor.test_actor import NOW, act
from tests.each import each

from gpuwarden.clock import ManualClock
from gpuwarden_cli.actor.acts import Act, Scheduler
from gpuwarden_cli.actor.journal import Journal
from gpuwarden_cli.actor.run import Actor, Allowed, Report
from gpuwarden_cli.actor.site import SiteCommand, SiteWebhook
from gpuwarden_cli.main import main


class Site(http.server.BaseHTTPRequestHandler):
    """A webhook."""

    seen: list[tuple[str, str, Any, bytes]]

    def _do(self) -> None:
        cls = type(self)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        cls.seen.append((self.command, self.path, dict(self.headers), body))
        self.send_response(204 if self.path == "/hook" else int(self.path[1:]))
        self.send_header("Location", "/hook")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = _do  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def site() -> Iterator[tuple[type[Site], str]]:
    handler = type("Handler", (Site,), {"seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def worked(scheduler: Scheduler, folder: Path, *acts: Act) -> list[Report]:
    clock = ManualClock(NOW)
    allowed = Allowed(scheduler.kinds, 9, folder / "stop")
    return Actor([scheduler], Journal(folder / "acts.jsonl"), allowed, clock, clock.advance).work(
        acts
    )


def test_a_webhook_gets_the_act_once_with_its_token_and_a_key(
    site: tuple[type[Site], str], tmp_path: Path
) -> None:
    handler, url = site
    (tmp_path / "token").write_text("secret\n")
    hook = SiteWebhook(f"{url}/hook", tmp_path / "token")
    asked = act("call_webhook", job="")
    assert worked(hook, tmp_path, asked, asked) == [Report("a1", True, "done, and checked")] * 2
    [(method, _, headers, body)] = handler.seen
    assert (method, headers["Authorization"], headers["Idempotency-Key"]) == ("POST", "Bearer secret", "a1")  # fmt: skip
    assert json.loads(body) | {"by": ""} == {
        "id": "a1", "kind": "call_webhook", "node": "n0", "username": "ada", "job": "", "by": "", "policy": "cull",
        "summary": "idle", "gpu_uuid": "",
    }  # fmt: skip


@each("status, said", [(500, "answered with 500"), (302, "answered with 302"), (404, "answered with 404")])  # fmt: skip
def test_a_webhook_that_does_not_say_2xx_has_not_done_it(
    site: tuple[type[Site], str], tmp_path: Path, status: int, said: str
) -> None:
    handler, url = site
    handler.seen.clear()
    [report] = worked(
        SiteWebhook(f"{url}/{status}"), tmp_path, act("call_webhook", id=f"a{status}")
    )
    assert not report.is_done and said in report.note
    assert [path for _, path, _, _ in handler.seen] == [f"/{status}"], "redirects are not followed"


def test_a_webhook_that_is_away_is_one_line(tmp_path: Path) -> None:
    [report] = worked(SiteWebhook("http://127.0.0.1:1/"), tmp_path, act("call_webhook"))
    assert not report.is_done and report.note.startswith("POST was not answered")


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_a_command_gets_the_act_on_its_standard_input(tmp_path: Path) -> None:
    path = program(tmp_path / "own", "import json, sys; act = json.load(sys.stdin); open(__file__ + act['id'], 'x')")  # fmt: skip
    assert worked(SiteCommand(path), tmp_path, act("run_command")) == [Report("a1", True, "done, and checked")]  # fmt: skip
    assert (tmp_path / "owna1").exists()
    fails = program(tmp_path / "fails", "import sys; sys.exit('no such rack')")
    [report] = worked(SiteCommand(fails), tmp_path, act("run_command", id="a2"))
    assert report == Report("a2", False, "fails: no such rack")
    [gone] = worked(SiteCommand(tmp_path / "gone"), tmp_path, act("run_command", id="a3"))
    assert gone.note.endswith("cannot run: No such file or directory")


@each("act_kind, option", [("call_webhook", "--webhook"), ("run_command", "--command")])
def test_what_an_act_needs_is_said_at_the_start(tmp_path: Path, capsys, act_kind, option) -> None:
    command = ["actor", "run", "--once", "--journal", str(tmp_path / "acts"), "--allow", act_kind]
    assert main(command) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"--allow {act_kind} needs {option}")
