"""A node moves between collectors of one lake: its alert continues, and receivers are sent its begin and its end once."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster.conftest import Host, post, streams, wait_for
from tests.cluster.test_coordination import Join
from tests.cluster.test_coordination import join as join  # noqa: PLC0414  # a fixture
from tests.end_to_end.test_alerts import hooked

from gpuwarden.cluster import ClusterAnswer, ClusterAsk, MovingState
from gpuwarden.wire import BatchId
from gpuwarden_client.http import ask, call
from gpuwarden_rules.notify.handover import ROUND_S

Hosts = Callable[..., list[Host]]
# `planted` holds for every node, until an annotation says that it is mended. `silent` would be a false alarm.
RULES = """
rules:
  - name: planted
    severity: critical
    labels: [node]
    interval: 1s
    gather_for: 0s
    summary: "{node} is ill."
    remedy: none
    sql: |
      SELECT node, 1.0 AS value FROM nodes
      WHERE $now IS NOT NULL AND node NOT IN (SELECT node FROM annotations WHERE node IS NOT NULL)
  - name: silent
    severity: critical
    labels: [node]
    interval: 1s
    gather_for: 0s
    judges_silent_nodes: true
    summary: "{node} sends nothing."
    remedy: none
    sql: |
      SELECT node, 1.0 AS value FROM nodes WHERE last_seen_at < $now::TIMESTAMP - INTERVAL 30 SECOND
"""
OVERRIDES = "overrides: [{rules: ['*'], enabled: false}, {rules: [planted, silent], enabled: true}]"


def body() -> bytes:
    """A node that reports, with a sample of now."""
    now = datetime.now(UTC).replace(microsecond=0)
    key = {"node": "n1", "simulated": False}
    node = {**key, "agent_id": "agent-n1", "boot_id": "boot", "agent_version": "1", "labels": "{}"}
    sample = {**key, "ts": now, "gpu": 0, "gpu_uuid": "GPU-1"}
    return streams({"gpu_samples": [sample], "nodes": [node]})


def alerts(host: Host) -> dict[str, tuple[str, Any, Any]]:
    sql = "SELECT rule, node, state, fired_at, resolved_reason FROM alerts ORDER BY active_at"
    found = ask(sql, url=host.url).rows
    return {f"{rule} {node}": (state, fired, why) for rule, node, state, fired, why in found}


def test_an_alert_goes_on_at_the_collector_that_its_node_moves_to_and_nothing_is_sent_twice(
    hosts: Hosts, tmp_path: Path
) -> None:
    a, b = hosts("a", "b")
    with hooked() as (address, received):
        rules, notify = tmp_path / "rules", tmp_path / "notify.yaml"
        rules.mkdir()
        (rules / "planted.yaml").write_text(RULES)
        (rules / "overrides.yaml").write_text(OVERRIDES)
        notify.write_text(f"receivers: [{{name: hook, webhook: '{address}'}}]\nroutes: [{{receivers: [hook]}}]\n")  # fmt: skip
        for host in (a, b):
            host.set("rules_dirs", str(rules))
            host.set("notify_file", str(notify))
            host.start()

        def said() -> list[tuple[str, str]]:
            bodies = [json.loads(body) for _, body in received]
            return [(one["status"], one["title"]) for one in bodies]

        sequence = iter(range(1, 10_000))

        def hears(host: Host) -> bool:
            time.sleep(0.5)
            return post(host, BatchId("agent-n1", "boot", next(sequence)), body()) == 204

        def hears_for(host: Host, seconds: float) -> None:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                assert hears(host)

        assert hears(a)
        wait_for(lambda: len(received) == 1, "the alert is sent")
        fired = alerts(a)["planted n1"]
        hears_for(a, 2 * ROUND_S)  # the others know it after one
        a.kill()
        wait_for(
            lambda: hears(b) and alerts(b).get("planted n1", ("", 0))[1] == fired[1],
            lambda: f"the alert continues with its times: {alerts(b)}, {fired} {a.output[-3000:]}",
        )
        hears_for(b, 5)
        assert len(received) == 1, said()
        # The first collector is back: it sends no end, and does not take the node for dead.
        a.start()
        wait_for(lambda: hears(b) and alerts(a)["planted n1"][0] == "resolved", "it is left there")
        assert alerts(a)["planted n1"][2] == "its node reports to another collector"
        hears_for(b, 34)  # long after the first collector counts the node as silent
        assert "silent n1" not in alerts(a) and "silent n1" not in alerts(b)
        assert len(received) == 1, said()
        call("POST", "/v1/annotations", {"text": "mended", "node": "n1"}, url=b.url)
        wait_for(lambda: hears(b) and len(received) == 2, "its end is sent")
        assert [status for status, _ in said()] == ["open", "resolved"]


def test_a_node_is_of_the_collector_that_claimed_it_last_and_its_state_goes_along(
    join: Join,
) -> None:
    a, b = join(), join()
    alert = MovingState("alert", "f'1", "n'1", '{"rule": "“x”"}')
    notice = MovingState("notice", "k", "", "{}")
    assert a.exchange("A", ClusterAsk()) == ClusterAnswer([], [])
    [own] = a.exchange("A", ClusterAsk(["n'1"], [alert, notice])).owners
    assert (own.node, own.is_own) == ("n'1", True)
    [other] = b.exchange("B", ClusterAsk()).owners
    assert other == own._replace(is_own=False)
    # Claimed again by its owner, nothing changes.
    assert a.exchange("A", ClusterAsk(["n'1"])).owners == [own]
    found = b.exchange("B", ClusterAsk(["n'1"], take=["n'1"]))
    assert found.owners[0].is_own and found.owners[0].claimed_ms >= own.claimed_ms
    assert set(found.taken) == {alert, notice}
    b.exchange("B", ClusterAsk(put=[alert]))
    # What the other has taken over is no longer A's to delete.
    a.exchange("A", ClusterAsk(gone=[("alert", "f'1"), ("notice", "k")]))
    assert a.exchange("A", ClusterAsk(take=["n'1", "n2"])).taken == [alert]
    assert b.exchange("B", ClusterAsk(since_ms=found.owners[0].claimed_ms + 1)).owners == []
