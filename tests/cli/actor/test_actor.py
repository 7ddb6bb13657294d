"""The actor does each act at most once, whatever ends it, and nothing that it may not, with Slurm's commands and Kubernetes."""

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.each import each

from gpuwarden.clock import ManualClock
from gpuwarden_cli.actor.acts import Act, ActError
from gpuwarden_cli.actor.journal import Journal, JournalError
from gpuwarden_cli.actor.kubernetes import Kubernetes
from gpuwarden_cli.actor.run import Actor, Allowed, Report, acts_of
from gpuwarden_cli.actor.slurm import Slurm
from gpuwarden_collector.processes.sandbox import landlock_version

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
SLURM = (
    f"#!{sys.executable} -IS\n"  # without site-packages it starts in a third of the time
    + """import json, os, pathlib, sys
state = pathlib.Path(__file__).with_name("cluster.json")
known = json.loads(state.read_text())
known["calls"].append([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
name, job = pathlib.Path(sys.argv[0]).name, known["jobs"]
def end(code=0, said=""):
    # Whole, as the test reads it meanwhile.
    new = state.with_suffix(f".{os.getpid()}"); new.write_text(json.dumps(known)); new.replace(state)
    print(said, file=sys.stderr if code else sys.stdout); sys.exit(code)
if name == "squeue":
    wanted = [a for a in sys.argv if a.startswith("--jobs=")][0][7:]
    end(*((0, "|".join(job[wanted])) if wanted in job else (1, "slurm_load_jobs error: Invalid job id specified")))
if name == "scancel":
    job[sys.argv[1]][1] = "CANCELLED" if known["works"] else "RUNNING"; end()
if name == "sinfo":
    if any(a.startswith("--format=%E") for a in sys.argv):
        end(0, known["reason"])
    end(0, "\\n".join(f"batch|{n}|{s}" for n, s in known["nodes"].items()))
if sys.argv[1] == "requeue":
    job[sys.argv[2]][1] = "PENDING"; end()
if sys.argv[1] == "reboot":
    if not known["can_reboot"]:
        end(1, "scontrol_reboot error: Invalid node state specified")
    known["reason"] = sys.argv[-2].partition("=")[2]; known["nodes"][sys.argv[-1]] = "draining@"; end()
if sys.argv[2].startswith("JobId="):
    known["comments"][sys.argv[2][6:]] = sys.argv[3].partition("=")[2]; end(known["can_comment"])
node = sys.argv[2].partition("=")[2]
known["reason"] = sys.argv[-1].partition("=")[2]
known["nodes"][node] = "idle" if "State=RESUME" in sys.argv else known["nodes"][node] + "+drain"; end()
"""
)


class Cluster:
    """Slurm's commands, on a state in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("squeue", "sinfo", "scancel", "scontrol"):
            (folder / name).write_text(SLURM)
            (folder / name).chmod(0o755)
        self.known: dict[str, Any] = {
            "jobs": {"11": ["ada", "RUNNING"]},
            "nodes": {"n0": "idle", "n1": "mixed"},
            "calls": [],
            "works": True,
            "comments": {},
            "can_comment": 0,
            "can_reboot": True,
            "reason": "none",
        }
        self.write()

    def write(self) -> None:
        (self.folder / "cluster.json").write_text(json.dumps(self.known))

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "cluster.json").read_text())
        return found

    @property
    def changes(self) -> list[list[str]]:
        """Calls that change something, without comments of jobs."""
        calls = [call for call in self.read()["calls"] if call[0] in ("scancel", "scontrol")]
        return [call for call in calls if not call[-1].startswith("AdminComment=")]


@pytest.fixture
def slurm(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "bin")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def act(kind: str = "cancel_job", **more: Any) -> Act:
    known: dict[str, Any] = {
        "id": "a1",
        "kind": kind,
        "node": "n0",
        "username": "ada",
        "job": "11",
        "by": NOW + timedelta(minutes=10),
        "policy": "cull",
        "summary": "idle",
    }
    return Act(**{**known, **more})


def actor(slurm: Cluster, clock: ManualClock, *kinds: str, an_hour: int = 9) -> Actor:
    folder = slurm.folder.parent
    allowed = Allowed(
        frozenset(kinds or Slurm.kinds),
        an_hour,
        folder / "stop",
    )
    return Actor(
        [Slurm(str(slurm.folder))], Journal(folder / "acts.jsonl"), allowed, clock, clock.advance
    )


def test_a_job_is_cancelled_once_checked_and_reported_as_often_as_asked(
    slurm: Cluster, clock: ManualClock
) -> None:
    one = actor(slurm, clock)
    assert one.work([act()]) == [Report("a1", True, "done, and checked")]
    assert one.work([act()]) == [Report("a1", True, "done, and checked")]
    assert actor(slurm, clock).work([act()]) == [Report("a1", True, "done, and checked")]
    assert slurm.changes == [["scancel", "11"]]
    assert slurm.read()["comments"] == {"11": "gpuwarden cull: idle"}


def test_a_job_that_takes_no_comment_is_ended_all_the_same(
    slurm: Cluster, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    slurm.known["can_comment"] = 1
    slurm.write()
    said = "idle\n--partition=x " + "y" * 500
    assert actor(slurm, clock).work([act(summary=said)])[0].is_done
    assert "the job has no comment" in caplog.text
    call = next(c for c in slurm.read()["calls"] if c[-1].startswith("AdminComment="))
    assert call[:2] == ["scontrol", "update"] and len(call) == 4 and "\n" not in call[-1]
    assert len(call[-1]) == len("AdminComment=") + 300


def test_a_node_is_drained_and_a_job_requeued(slurm: Cluster, clock: ManualClock) -> None:
    done = actor(slurm, clock).work([act("drain_node"), act("requeue_job", id="a2")])
    assert [report.is_done for report in done] == [True, True]
    assert slurm.changes == [
        ["scontrol", "update", "NodeName=n0", "State=DRAIN", "Reason=gpuwarden a1"], ["scontrol", "requeue", "11"],
    ]  # fmt: skip


def test_a_node_is_rebooted_once_and_stays_closed_until_it_is_returned(
    slurm: Cluster, clock: ManualClock
) -> None:
    one = actor(slurm, clock)
    asked = act("reboot_node", job="", username="")
    assert one.work([asked, asked]) == [Report("a1", True, "done, and checked")] * 2
    [again] = one.work([act("reboot_node", id="a2", job="", username="")])
    assert again.note == "the node reboots already"
    assert slurm.changes == [
        ["scontrol", "update", "NodeName=n0", "State=DRAIN", "Reason=gpuwarden a1"],
        ["scontrol", "reboot", "reason=gpuwarden reboots a1", "n0"],
    ]
    slurm.known |= {"nodes": {"n0": "drained", "n1": "idle"}, "reason": "gpuwarden reboots a1 : reboot issued"}  # fmt: skip
    slurm.write()
    [back] = one.work([act("resume_node", id="a3", job="", username="")])
    assert back.is_done and slurm.read()["nodes"]["n0"] == "idle"


def test_a_node_that_cannot_be_rebooted_stays_drained_and_failed(
    slurm: Cluster, clock: ManualClock
) -> None:
    slurm.known["can_reboot"] = False
    slurm.write()
    [report] = actor(slurm, clock).work([act("reboot_node", job="", username="")])
    assert not report.is_done and "Invalid node state" in report.note
    assert slurm.read()["nodes"]["n0"] == "idle+drain"
    # After a crash between both commands the reboot was not asked for.
    assert not Slurm(str(slurm.folder)).is_done(act("reboot_node", job="", username=""))


class _KilledError(BaseException):
    """The process was killed."""


@each("at", ["begin", "do", "end"])
def test_an_actor_that_is_killed_at_any_step_does_nothing_twice(
    slurm: Cluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    slurm.write()
    slurm.folder.parent.joinpath("acts.jsonl").unlink(missing_ok=True)
    one = actor(slurm, clock)
    kind: Any = Slurm if at == "do" else Journal
    real = getattr(kind, at)

    def killed(self: Any, *args: Any, **more: Any) -> None:
        if at != "end":
            real(self, *args, **more)
        raise _KilledError

    with monkeypatch.context() as patched:
        patched.setattr(kind, at, killed)
        with pytest.raises(_KilledError):
            one.work([act()])
    [report] = actor(slurm, clock).work([act()])
    changes = slurm.changes
    assert (report.is_done, report.note) == (
        (False, "interrupted, and not done: it is not repeated")
        if at == "begin"
        else (True, "done before the actor was interrupted")
    )
    assert changes == ([] if at == "begin" else [["scancel", "11"]])


@each("changed, asked, expected", [
    ({"jobs": {}}, {}, (True, "the job had ended")),
    ({"jobs": {"11": ["ada", "COMPLETED"]}}, {}, (True, "the job had ended")),
    ({"jobs": {"11": ["bob", "RUNNING"]}}, {}, (False, "job 11 is of bob, not of ada: not done")),
    ({"nodes": {"n0": "idle", "n1": "down*"}}, {"kind": "drain_node"}, (False, "n0 is the last node of partition batch that takes jobs: not done")),
    ({"nodes": {"n0": "idle", "n1": "down*"}}, {"kind": "reboot_node"}, (False, "n0 is the last node of partition batch that takes jobs: not done")),
    ({"nodes": {"n1": "idle"}}, {"kind": "drain_node"}, (False, "Slurm has no node n0: not done")),
    ({"nodes": {"n0": "drained", "n1": "idle"}}, {"kind": "drain_node"}, (True, "the node was drained already")),
    ({}, {"kind": "resume_node"}, (True, "the node is not drained")),
    ({"nodes": {"n0": "draining@"}, "reason": "gpuwarden reboots a0"}, {"kind": "resume_node"}, (False, "n0 has not been rebooted yet: not done")),
    ({"nodes": {"n0": "drained"}, "reason": "bad fan"}, {"kind": "resume_node"}, (False, "n0 was drained for another reason, 'bad fan': not done")),
    ({"nodes": {"n0": "drained", "n1": "idle"}, "reason": "bad fan"}, {"kind": "reboot_node"}, (False, "n0 was drained for another reason, 'bad fan': not done")),
    ({}, {"job": "11; rm -rf /"}, (False, "'11; rm -rf /' is not a name that Slurm has: not done")),
    ({}, {"job": "--me"}, (False, "'--me' is not a name that Slurm has: not done")),
    ({}, {"kind": "delete_pod"}, (False, "this actor may not do delete_pod: --allow delete_pod")),
])  # fmt: skip
def test_what_must_not_or_need_not_be_done_is_not(
    slurm: Cluster,
    clock: ManualClock,
    changed: dict[str, Any],
    asked: dict[str, Any],
    expected: tuple[bool, str],
) -> None:
    slurm.known = {
        "jobs": {"11": ["ada", "RUNNING"]},
        "nodes": {"n0": "idle", "n1": "mixed"},
        "calls": [],
        "works": True,
        **changed,
    }
    slurm.write()
    assert actor(slurm, clock).work([act(**asked)]) == [Report("a1", *expected)]
    assert slurm.changes == []


def test_without_an_effect_it_is_a_failure(
    slurm: Cluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden_cli.actor.run.CHECK_S", 3.0)
    slurm.known["works"] = False
    slurm.write()
    [report] = actor(slurm, clock).work([act()])
    assert (report.is_done, report.note) == (False, "asked for, but no effect after 3 s")
    assert slurm.changes == [["scancel", "11"]]


def test_stop_file_limit_and_time_hold_acts_back(
    slurm: Cluster, clock: ManualClock, tmp_path: Path
) -> None:
    slurm.known["jobs"] = {str(number): ["ada", "RUNNING"] for number in range(5)}
    slurm.write()
    acts = [act(id=f"a{n}", job=str(n), by=NOW + timedelta(hours=3)) for n in range(5)]
    one = actor(slurm, clock, an_hour=2)
    (tmp_path / "stop").touch()
    assert one.work(acts) == []
    (tmp_path / "stop").unlink()
    assert len(one.work(acts)) == 2
    clock.advance(3601)
    assert len(one.work(acts)) == 4
    assert one.work([act(id="late", by=NOW)]) == []
    assert actor(slurm, clock, "drain_node").work([acts[4]]) == [
        Report("a4", False, "this actor may not do cancel_job: --allow cancel_job")
    ]


def test_a_full_disk_stops_acts_before_they_begin(
    slurm: Cluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    one = actor(slurm, clock)
    monkeypatch.setattr("gpuwarden_cli.actor.journal.os.fsync", full)
    with pytest.raises(JournalError, match="No space left"):
        one.work([act()])
    assert slurm.changes == []


def test_a_line_that_a_crash_cut_off_was_not_acted_upon_and_rubbish_stops_the_actor(
    tmp_path: Path,
) -> None:
    path = tmp_path / "acts.jsonl"
    journal = Journal(path)
    journal.begin("a1", NOW)
    journal.end("a1", is_done=True, note="x")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"id": "a2", "beg')
    assert list(Journal(path).entries) == ["a1"] and path.read_bytes() == whole
    path.write_bytes(whole + b"rubbish\n")
    with pytest.raises(JournalError, match="acts.jsonl:3: not a line of this journal"):
        Journal(path)


@each("document", [
    None, [], {}, {"acts": 7}, {"acts": [7]}, {"acts": [{}]},
    {"acts": [{"id": "a/b", "act": "x", "node": "", "username": "", "job": "", "by": "2026-03-04T12:00:00+00:00"}]},
    {"acts": [{"id": "a", "act": "x", "node": "", "username": "", "job": "", "by": "soon"}]},
    {"acts": [{"id": "a", "act": "x", "node": "", "username": "", "job": "", "by": "2026-03-04T12:00:00"}]},
])  # fmt: skip
def test_acts_that_cannot_be_read_are_left_out(document: Any) -> None:
    assert acts_of(document) == []


# --- Kubernetes


class _Api(http.server.BaseHTTPRequestHandler):
    """Pods and nodes in memory."""

    pods: dict[str, dict[str, Any]]
    nodes: dict[str, dict[str, Any]]
    takes_events = True
    changes: list[tuple[str, str, Any]]

    def _answer(self, code: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _do(self) -> None:
        cls = type(self)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        if self.headers["Authorization"] != "Bearer of-the-pod":
            return self._answer(401, {"message": "Unauthorized"})
        if self.command != "GET":
            cls.changes.append((self.command, self.path, body))
        if self.path == "/api/v1/nodes":
            return self._answer(200, {"items": list(cls.nodes.values())})
        if self.path.endswith("/events"):
            return self._answer(
                *((201, body) if cls.takes_events else (403, {"message": "forbidden"}))
            )
        kind = cls.nodes if "/nodes/" in self.path else cls.pods
        found = kind.get(self.path.rpartition("/")[2])
        if found is None:
            return self._answer(404, {"message": "not found"})
        if self.command == "DELETE" and body["preconditions"]["uid"] != found["metadata"]["uid"]:
            return self._answer(409, {"message": "the UID in the precondition does not match"})
        if self.command == "DELETE":
            found["metadata"]["deletionTimestamp"] = "now"
        if self.command == "PATCH":
            for part in ("spec", "metadata"):
                for key, value in body[part].items():
                    if isinstance(value, dict):
                        value = {k: v for k, v in {**found[part].get(key, {}), **value}.items() if v is not None}  # fmt: skip
                    found[part][key] = value
        return self._answer(200, found)

    do_GET = do_DELETE = do_PATCH = do_POST = _do  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[type[_Api], Kubernetes]]:
    authority = trustme.CA()
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("of-the-pod\n")
    authority.cert_pem.write_to_path(str(account / "ca.crt"))
    handler = type("Api", (_Api,), {
        "pods": {"train-0": {"metadata": {"name": "train-0", "uid": "u1"}}}, "changes": [],
        "nodes": {name: {"metadata": {"name": name}, "spec": {}} for name in ("n0", "n1")},
    })  # fmt: skip
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield handler, Kubernetes(ManualClock(NOW), account, f"https://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def test_a_pod_is_deleted_by_its_uid_and_a_node_cordoned_unless_it_is_the_last(
    api: tuple[type[_Api], Kubernetes], clock: ManualClock, tmp_path: Path
) -> None:
    handler, kubernetes = api
    allowed = Allowed(kubernetes.kinds, 9, tmp_path / "stop")
    one = Actor([kubernetes], Journal(tmp_path / "acts.jsonl"), allowed, clock, clock.advance)
    done = one.work([
        act("delete_pod", job="team/train-0"), act("delete_pod", id="a2", job="team/gone"), act("cordon_node", id="a3"),
        act("cordon_node", id="a4", node="n1"), act("delete_pod", id="a5", job="../nodes/n1"),
    ])  # fmt: skip
    assert [(report.act, report.is_done, report.note) for report in done] == [
        ("a1", True, "done, and checked"), ("a2", True, "the pod had ended"), ("a3", True, "done, and checked"),
        ("a4", False, "n1 is the last node that takes pods: not done"),
        ("a5", False, "'..' is not a name that Kubernetes has: not done"),
    ]  # fmt: skip
    assert [change[:2] for change in handler.changes] == [
        ("POST", "/api/v1/namespaces/team/events"), ("DELETE", "/api/v1/namespaces/team/pods/train-0"),
        ("PATCH", "/api/v1/nodes/n0"),
    ]  # fmt: skip
    event = handler.changes[0][2]
    assert (event["involvedObject"]["uid"], event["message"]) == (
        "u1",
        "delete_pod by policy cull: idle",
    )
    assert handler.changes[1][2] == {"preconditions": {"uid": "u1"}}


def kubernetes_actor(kubernetes: Kubernetes, clock: ManualClock, folder: Path) -> Actor:
    allowed = Allowed(kubernetes.kinds, 9, folder / "stop")
    return Actor([kubernetes], Journal(folder / "acts.jsonl"), allowed, clock, clock.advance)


def test_only_a_node_that_the_actor_closed_is_opened(
    api: tuple[type[_Api], Kubernetes], clock: ManualClock, tmp_path: Path
) -> None:
    handler, kubernetes = api
    one = kubernetes_actor(kubernetes, clock, tmp_path)
    done = one.work([act("cordon_node"), act("resume_node", id="a2"), act("resume_node", id="a3")])
    assert [(report.is_done, report.note) for report in done] == [
        (True, "done, and checked"), (True, "done, and checked"), (True, "the node takes pods"),
    ]  # fmt: skip
    assert handler.nodes["n0"]["metadata"]["annotations"] == {}
    handler.nodes["n0"]["spec"]["unschedulable"] = True
    [refused] = one.work([act("resume_node", id="a4")])
    assert refused.note == "n0 was closed by somebody else: not done"


def test_a_pod_is_deleted_also_without_the_right_to_events(
    api: tuple[type[_Api], Kubernetes], clock: ManualClock, tmp_path: Path
) -> None:
    handler, kubernetes = api
    handler.takes_events = False
    [deleted] = kubernetes_actor(kubernetes, clock, tmp_path).work(
        [act("delete_pod", job="team/train-0")]
    )
    assert deleted.is_done
    assert handler.changes[-1][:2] == ("DELETE", "/api/v1/namespaces/team/pods/train-0")


def test_the_pods_token_follows_no_redirect(api: tuple[type[_Api], Kubernetes]) -> None:
    handler, kubernetes = api
    asked: list[str] = []

    def redirect(self: _Api) -> None:
        asked.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    handler.do_GET = redirect
    with pytest.raises(ActError, match="answered 302 to GET"):
        kubernetes.look(act("delete_pod", job="team/train-0"))
    assert asked == ["/api/v1/namespaces/team/pods/train-0"]


def test_an_api_server_that_refuses_or_is_away_is_one_line(
    api: tuple[type[_Api], Kubernetes], tmp_path: Path
) -> None:
    _, kubernetes = api
    (tmp_path / "account" / "token").write_text("other")
    with pytest.raises(ActError, match="answered 401 to GET"):
        kubernetes.look(act("delete_pod", job="team/train-0"))
    with pytest.raises(ActError, match="does not answer"):
        Kubernetes(ManualClock(NOW), tmp_path / "account", "https://127.0.0.1:1").look(
            act("cordon_node")
        )
    with pytest.raises(ActError, match="not a pod of Kubernetes"):
        Kubernetes(ManualClock(NOW), tmp_path / "account").look(act("cordon_node"))


def test_the_kernel_keeps_the_actor_to_slurms_commands_and_its_folder(
    slurm: Cluster, tmp_path: Path
) -> None:
    if not landlock_version():
        pytest.skip("the kernel has no Landlock")
    command = tmp_path / "own"
    command.write_text(
        "#!/bin/bash\n/bin/cat /etc/hostname > /dev/null && echo may\n/bin/ls || echo not\n"
    )
    command.chmod(0o755)
    code = f"""
import pathlib, subprocess, sys
from gpuwarden_cli.commands.actor import _confine
folder = pathlib.Path({str(tmp_path)!r})
_confine(folder, [folder / "own", pathlib.Path("/bin/cat")])
print(subprocess.run([folder / "own"], capture_output=True, text=True).stdout)
print(subprocess.run(["squeue", "--jobs=11"], capture_output=True, text=True).stdout.strip())
for do in (lambda: subprocess.run(["/bin/sh", "-c", "id"]), lambda: (folder.parent / "outside").write_text("x"), lambda: subprocess.run(["/bin/ls"])):
    try:
        do()
        print("done")
    except PermissionError:
        print("refused")
(folder / "inside").write_text("x")
"""
    env = {**os.environ, "PATH": f"{slurm.folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["may", "not", "ada|RUNNING", "refused", "refused", "refused"], (
        done.stderr
    )
