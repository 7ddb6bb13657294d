"""A running collector takes up receivers, prices and rules on SIGHUP and by its API; what is wrong stays as it was."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_client.http import RefusedError, call

pytestmark = pytest.mark.slow

RULE = """
rules:
  - name: always
    severity: critical
    interval: 1s
    gather_for: 0s
    summary: It holds.
    remedy: Do nothing.
    sql: SELECT 1 AS value WHERE $now IS NOT NULL
"""
ALONE = "overrides: [{rules: ['*'], enabled: false}, {rules: [always], enabled: true}]"


def price(usd: float, more: str = "") -> str:
    return f'[[price]]\nnode = "*"\nusd_per_hour = {usd}\n{more}'


def test_what_is_right_is_taken_and_what_is_wrong_stays(world: Any, tmp_path: Path) -> None:
    rules, notify, prices = tmp_path / "rules", tmp_path / "notify.yaml", tmp_path / "prices.toml"
    config = tmp_path / "collector.toml"
    config.write_text(
        f'rules_dirs = ["{rules}"]\nnotify_file = "{notify}"\nprices_file = "{prices}"\n'
    )
    rules.mkdir()
    (rules / "always.yaml").write_text(RULE)
    (rules / "overrides.yaml").write_text(ALONE)
    notify.write_text(f"receivers: [{{name: one, file: {tmp_path / 'one'}}}]")
    prices.write_text(price(1.5))

    collector = world.collector("--config", str(config))
    simulated = world.run("simulate", "--nodes", "1", "--gpus-per-node", "2", "--duration", "2")
    assert simulated.returncode == 0, simulated.stderr

    def lines(words: str) -> list[str]:
        return [line for line in collector.output.splitlines() if words in line]

    def told(name: str) -> list[dict[str, Any]]:
        path = tmp_path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    costs = "SELECT DISTINCT usd_per_hour FROM gpus"
    assert world.ask(costs) == [(1.5,)]
    world.wait_for(lambda: bool(told("one")), "the first receiver is notified", collector)

    # All wrong: each is named in one line, and everything continues.
    (rules / "always.yaml").write_text(RULE.replace("severity", "seventy"))
    notify.write_text("receivers: [{name: two}]")
    prices.write_text(price(2.5, "gpus = 8\n"))
    collector.popen.send_signal(signal.SIGHUP)
    world.wait_for(lambda: bool(lines("rules not reloaded")), "rules are refused", collector)
    assert "always.yaml:3:5" in lines("rules not reloaded")[0]
    assert f"{notify}:1:13: a receiver has exactly one of" in lines("notify_file not reloaded")[0]
    assert f"{prices}:1: gpus goes with" in lines("prices not reloaded")[0]
    assert world.ask(costs) == [(1.5,)]

    # Right ones beside a wrong one are taken, and the answer says what is not.
    notify.write_text(
        f"receivers: [{{name: one, file: {tmp_path / 'one'}}}, {{name: two, file: {tmp_path / 'two'}}}]"
    )
    (rules / "always.yaml").write_text(RULE)
    with pytest.raises(
        RefusedError, match="the previous file stays in force: .*prices.toml:1: gpus goes with"
    ):
        call("POST", "/v1/rules/reload", {}, url=world.url)
    world.wait_for(lambda: bool(told("two")), "the new receiver is notified", collector)
    prices.write_text(price(2.5))
    assert call("POST", "/v1/rules/reload", {}, url=world.url)["overrides"] == 2
    assert world.ask(costs) == [(2.5,)]
    assert world.ask("SELECT DISTINCT price_basis FROM gpus")[0][0].startswith("prices.toml:1")

    # The outbox is the same: a receiver that got the alert does not get it again.
    of_the_rule = [m for m in told("one") if m["title"].endswith("fleet: always")]
    assert len(of_the_rule) == 1
    assert lines("notify_file reloaded")

    # Settings that cannot change while it runs are named; a file that is wrong is one line.
    right = config.read_text()
    config.write_text(f"{right}keep_samples_days = 3\n")
    collector.popen.send_signal(signal.SIGHUP)
    world.wait_for(lambda: bool(lines("needs a restart")), "what changed is named", collector)
    assert "settings=keep_samples_days" in lines("needs a restart")[0]
    config.write_text(f"{right}keep_samples_days = -1\n")
    collector.popen.send_signal(signal.SIGHUP)
    world.wait_for(lambda: bool(lines("settings not reloaded")), "they are refused", collector)
    assert f"{config}:4" in lines("settings not reloaded")[0]
    assert collector.stop() == 0
