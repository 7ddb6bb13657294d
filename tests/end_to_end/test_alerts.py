"""A fault of a GPU reaches its receiver, and can be explained: agent, collector, rule,
notification, command.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from tests.end_to_end.conftest import copy_rules

from gpuwarden_client.http import call

pytestmark = pytest.mark.slow

SECRET = "not-a-secret"

FAULTS = """
[[fault]]
at = "2s"
node = "sim-0001"
gpu = 3
fault = "xid"
code = 48
"""


@contextmanager
def hooked() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A receiver's address, and the headers and body of each request to it."""
    received: list[tuple[dict[str, str], bytes]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            received.append((dict(self.headers), body))

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", received
    finally:
        server.shutdown()
        server.server_close()


def test_an_xid_reaches_a_webhook_signed_and_once(world) -> None:
    with hooked() as (address, received):
        notify = world.folder / "notify.yaml"
        notify.write_text(
            f"receivers: [{{name: hook, webhook: '{address}', secret: {SECRET}}}]\n"
            "routes: [{receivers: [hook], match: {rule: xid_critical}}]\n"
        )
        # What else fires is not waited for: gathering is tested with incidents.
        rules = copy_rules(world.folder / "at_once", "xid_critical", gather_for="0s")
        (world.folder / "collector.toml").write_text(
            f'notify_file = "{notify}"\nrules_dirs = ["{rules}"]\n'
        )
        (world.folder / "faults.toml").write_text(FAULTS)
        world.collector("--config", str(world.folder / "collector.toml"))
        fleet = ["simulate", "--nodes", "1", "--gpus-per-node", "8", "--script", "faults.toml"]
        world.start(*fleet)
        world.wait_for(lambda: len(received) > 0, "a webhook")
        fired = "select count(*) from alerts where rule = 'xid_critical' and state = 'firing'"
        world.wait_for(lambda: world.one(fired) == 1, "the alert is stored")
        _is_explained(world)
        _is_found_in_history(world)
    ((headers, body),) = received
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.digest(SECRET.encode(), signed, hashlib.sha256)
    assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    message = json.loads(body)
    assert (message["status"], message["severity"]) == ("open", "critical")
    (alert,) = message["firing"]
    assert alert["rule"] == "xid_critical"
    assert (alert["labels"]["node"], alert["labels"]["xid"]) == ("sim-0001", "48")
    assert alert["simulated"] is True


def _is_explained(world) -> None:
    fingerprint = world.one("SELECT fingerprint FROM alerts_now WHERE rule = 'xid_critical'")
    found = call("GET", f"/v1/alerts/{fingerprint}/explanation", url=world.url)
    assert found["alert"]["summary"].startswith("sim-0001: ")
    assert found["params"]["window"] == 86400.0
    assert [entry["what"] for entry in found["timeline"]] == ["began, as the samples say", "fired"]
    when = {entry["when"]: entry["row"] for entry in found["rows"]}
    assert when["when it fired"]["xid"] == when["now"]["xid"] == "48"


def _is_found_in_history(world) -> None:
    words = ["rules", "backtest", "xid_critical", "--since", "10m", "--every", "5s"]
    done = world.run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("xid_critical would have fired once in ")
    assert ", at most 5 s apart" in done.stdout
    (line,) = world.run(*words, "--format", "json").stdout.splitlines()
    found = json.loads(line)
    assert (found["rule"], found["labels"]["node"]) == ("xid_critical", "sim-0001")
    assert found["resolved_at"] is None

    rules = world.folder / "rules"
    rules.mkdir()
    override = "{rules: [xid_critical], match: {node: 'sim-*'}, enabled: false}"
    (rules / "overrides.yaml").write_text(f"overrides: [{override}]\n")
    (world.folder / "other.toml").write_text(f'rules_dirs = ["{rules}"]\n')
    done = world.run(*words, "--config", "other.toml", "--format", "json")
    assert (done.returncode, done.stdout) == (0, "")
