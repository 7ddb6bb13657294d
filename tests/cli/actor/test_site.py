"""Acts by the site's own programs: asked once, checked, refused where something else would be met."""

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.actor.test_actor import NOW, act
from tests.each import each

from gpuwarden.clock import ManualClock
from gpuwarden_cli.actor.acts import Act, ActError, Scheduler
from gpuwarden_cli.actor.journal import Journal
from gpuwarden_cli.actor.run import Actor, Allowed, Report
from gpuwarden_cli.actor.site import JupyterHub, NvidiaSmi, SiteCommand, SiteWebhook, Systemd
from gpuwarden_cli.main import main


class Site(http.server.BaseHTTPRequestHandler):
    """A webhook, and a JupyterHub with one server."""

    seen: list[tuple[str, str, Any, bytes]]
    servers: dict[str, str | None]

    def _do(self) -> None:
        cls = type(self)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        cls.seen.append((self.command, self.path, dict(self.headers), body))
        status, answer = 204, b""
        if self.path.startswith("/hub/api/users/"):
            name = self.path.split("/")[4]
            if self.command == "DELETE":
                cls.servers[name] = None
            elif name not in cls.servers:
                status, answer = 404, b"no such user"
            else:
                status, answer = 200, json.dumps({"server": cls.servers[name]}).encode()
        elif self.path != "/hook":
            status = int(self.path[1:])
        self.send_response(status)
        self.send_header("Location", "/hook")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_DELETE = do_POST = _do  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def site() -> Iterator[tuple[type[Site], str]]:
    handler = type("Handler", (Site,), {"seen": [], "servers": {"ada": "/user/ada/"}})
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
        "id": "a1", "kind": "call_webhook", "node": "n0", "user": "ada", "job": "", "by": "", "policy": "cull",
        "summary": "idle", "cgroup": "", "gpu_uuid": "",
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


def test_a_users_notebook_server_is_stopped_and_one_without_is_left(
    site: tuple[type[Site], str], tmp_path: Path
) -> None:
    handler, url = site
    (tmp_path / "token").write_text("hub")
    hub = JupyterHub(url, tmp_path / "token")
    ada = act("stop_notebook", job="")
    again, unknown, wrong = (replace(ada, id=f"b{n}", user=user) for n, user in enumerate(("ada", "eve", "../admin")))  # fmt: skip
    done = worked(hub, tmp_path, ada, again, unknown, wrong)
    assert [(report.is_done, report.note) for report in done] == [
        (True, "done, and checked"), (True, "the user has no server"), (False, "GET was answered with 404: no such user"),
        (False, "'../admin' is not a user of JupyterHub: not done"),
    ]  # fmt: skip
    assert [seen[:2] for seen in handler.seen if seen[0] == "DELETE"] == [("DELETE", "/hub/api/users/ada/server")]  # fmt: skip
    assert {seen[2]["Authorization"] for seen in handler.seen} == {"token hub"}


SYSTEMCTL = """
import json, pathlib, sys
state = pathlib.Path(__file__).with_name("units.json")
known = json.loads(state.read_text())
if sys.argv[1] == "show":
    active, group = known.get(sys.argv[2], ["inactive", ""])
    print(f"ActiveState={active}\\nControlGroup={group}")
else:
    known[sys.argv[3]][0] = "inactive"
    state.write_text(json.dumps(known))
"""
TRAIN = "/system.slice/train@7.service"


@each("group, more, expected", [
    (TRAIN, {}, (True, "done, and checked")),
    ("/system.slice/train@8.service", {}, (True, "the unit had ended")),
    ("/system.slice/sshd.service", {}, (False, "this actor may not stop sshd.service: --unit sshd.service")),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice/train@7.service", {}, (False, "this actor may not stop user@1000.service: --unit user@1000.service")),
    ("/other.slice/train@7.service", {}, (False, "train@7.service has another control group than the user's processes: not done")),
    ("/kubepods/pod1", {}, (False, "'/kubepods/pod1' is of no unit: not done")),
    ("", {}, (False, "the control group of the user's processes is not known, or there are several: not done")),
    (TRAIN, {"node": "n1"}, (False, "this actor is on n0, not on n1: not done")),
])  # fmt: skip
def test_only_the_unit_of_the_users_own_processes_is_stopped(
    tmp_path: Path, group: str, more: dict[str, Any], expected: tuple[bool, str]
) -> None:
    (tmp_path / "acts.jsonl").unlink(missing_ok=True)
    (tmp_path / "units.json").write_text(
        json.dumps(
            {
                "train@7.service": ["active", TRAIN],
                "sshd.service": ["active", "/system.slice/sshd.service"],
            }
        )
    )
    systemctl = program(tmp_path / "systemctl", SYSTEMCTL)
    systemd = Systemd("n0", ["train@*"], str(systemctl))
    asked = act("stop_unit", job="", cgroup=group, **more)
    assert worked(systemd, tmp_path, asked) == [Report("a1", *expected)]
    units = json.loads((tmp_path / "units.json").read_text())
    assert units["train@7.service"][0] == ("inactive" if expected[1] == "done, and checked" else "active")  # fmt: skip


SMI = """
import json, pathlib, sys
state = pathlib.Path(__file__).with_name("gpus.json")
known = json.loads(state.read_text())
known["calls"].append(sys.argv[1:])
gpu, words = sys.argv[1].removeprefix("--id="), sys.argv[2:]
if words[0].startswith("--query-gpu"):
    print(", ".join(map(str, known["limits"][gpu])) if gpu in known["limits"] else "[N/A], [N/A]")
elif words[0].startswith("--power-limit="):
    known["limits"][gpu][0] = float(words[0].partition("=")[2])
state.write_text(json.dumps(known))
"""
GPU = "GPU-11111111-2222-3333-4444-555555555555"


def test_power_limit_and_clocks_are_set_back_on_the_own_node_alone(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps({"limits": {GPU: [350.0, 700.0]}, "calls": []}))
    smi = NvidiaSmi("n0", str(program(tmp_path / "nvidia-smi", SMI)))
    limit = act("reset_power_limit", job="", user="", gpu_uuid=GPU)
    others = [
        replace(limit, id="b1"), replace(limit, id="b2", kind="reset_clocks"), replace(limit, id="b3", node="n1"),
        replace(limit, id="b4", gpu_uuid="GPU-1 --gpu-reset"), replace(limit, id="b5", gpu_uuid=GPU.replace("1", "a")),
    ]  # fmt: skip
    done = worked(smi, tmp_path, limit, *others)
    assert [(report.is_done, report.note) for report in done] == [
        (True, "done, and checked"), (True, "the limit is the default"), (True, "done, and checked"),
        (False, "this actor is on n0, not on n1: not done"), (False, "'GPU-1 --gpu-reset' is not a UUID of NVIDIA's: not done"),
        (False, f"nvidia-smi says no power limit of {GPU.replace('1', 'a')}: [N/A], [N/A]"),
    ]  # fmt: skip
    calls = json.loads((tmp_path / "gpus.json").read_text())["calls"]
    assert [words[1] for words in calls if not words[1].startswith("--query")] == [
        "--power-limit=700", "--reset-gpu-clocks", "--reset-memory-clocks",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--allow", "call_webhook"), "--allow call_webhook needs --webhook"),
        (("--allow", "stop_unit", "--unit", "x"), "--allow stop_unit needs --node"),
        (("--allow", "cancel_job", "--jupyterhub", "http://h"), "--jupyterhub needs --jupyterhub-token-file"),
    ],
)  # fmt: skip
def test_what_an_act_needs_is_said_at_the_start(tmp_path: Path, capsys, options, said) -> None:
    assert main(["actor", "run", "--once", "--journal", str(tmp_path / "acts"), *options]) == 2
    assert capsys.readouterr().err.rstrip().endswith(said)


def test_a_token_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ActError, match="token cannot be read"):
        JupyterHub("http://127.0.0.1:1", tmp_path / "token").is_done(act("stop_notebook"))
