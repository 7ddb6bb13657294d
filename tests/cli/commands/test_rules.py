"""`gpuwarden rules` from the command line."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from tests.collector.made_up_store import LIMITS, put

from gpuwarden.clock import SystemClock
from gpuwarden_cli.commands.rules import paths_of
from gpuwarden_cli.main import main
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database


def test_a_new_rule_is_valid_passes_its_test_and_prints_its_sql(tmp_path, capsys) -> None:
    assert main(["rules", "new", "gpu_warm", str(tmp_path / "ours")]) == 0
    assert main(["rules", "check", str(tmp_path / "ours")]) == 0
    assert main(["rules", "test", str(tmp_path / "ours")]) == 0
    assert "1 passed, 0 failed" in capsys.readouterr().out
    assert main(["rules", "sql", "gpu_warm", str(tmp_path / "ours")]) == 0
    assert "min(memory_temperature_celsius) AS coolest" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Gpu warm", "../gpu_warm"])
def test_a_new_rule_overwrites_nothing_and_needs_a_name(tmp_path, capsys, name: str) -> None:
    (tmp_path / "gpu_warm.test.yaml").write_text("mine")
    assert main(["rules", "new", "gpu_warm", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["rules", "new", name, str(tmp_path)]) == 2
    assert "must be snake_case" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_warm.test.yaml"]


def test_a_wrong_rule_file_is_named_with_its_line(tmp_path, capsys) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rules:\n  - nome: x\n")
    assert main(["rules", "check", str(path)]) == 1
    assert f"{path}:2:" in capsys.readouterr().err


@pytest.mark.slow
def test_a_case_that_fails_says_what_was_expected_and_what_was(tmp_path, capsys) -> None:
    pack = next(p for p in paths_of([], tests=True) if p.name == "idle.test.yaml")
    for path in pack.parent.glob("idle*.yaml"):
        (tmp_path / path.name).write_text(path.read_text())
    mine = tmp_path / "idle.test.yaml"
    mine.write_text(re.sub(r"began: \w+", "began: 1s", mine.read_text()))
    assert main(["rules", "test", str(mine)]) == 1
    out = capsys.readouterr().out
    assert f"at {mine}:" in out
    assert "FAIL idle.test.yaml: " in out


RULE = {
    "rule": "gpu_hot",
    "state": "cannot run",
    "severity": "warning",
    "firing": 0,
    "pending": 0,
    "unknown": 0,
    "interval_s": 15.0,
    "for_s": 0.0,
    "summary": "hot",
    "reason": "no GPU of the fleet reports gpu_samples.temperature_celsius",
}


def test_a_collectors_rules_are_listed_with_why_they_cannot_run(answering, capsys) -> None:
    answering(200, {"rules": [RULE]})
    assert main(["rules", "list"]) == 0
    assert RULE["reason"] in capsys.readouterr().out
    assert main(["rules", "list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [RULE]


@pytest.mark.parametrize("wrong", [["--since", "soon"], ["--every", "x"], ["gpu_hto"]])
def test_a_backtest_that_is_called_wrong_says_so(wrong, capsys) -> None:
    assert main(["rules", "backtest", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_backtest_of_a_collector_without_history_says_so(answering, capsys) -> None:
    columns = [{"name": "first_at", "type": "TIMESTAMP"}]
    answering(200, {"columns": columns, "rows": [[None]], "truncated": False})
    assert main(["rules", "backtest", "gpu_idle_held"]) == 0
    assert "no samples to replay" in capsys.readouterr().err


OWN = """
rules:
  - name: hot_host
    severity: info
    labels: [node]
    params: {window: 2m, above: 50}
    summary: "{node} at {value:.0f}"
    remedy: none
    sql: |
      SELECT node, max(cpu_util_percent) AS value FROM host_samples
      WHERE ts > $now::TIMESTAMP - to_seconds($window) AND ts <= $now::TIMESTAMP
      GROUP BY node HAVING value > $above
  - name: broken
    severity: info
    summary: s
    remedy: r
    sql: SELECT nothing FROM host_samples WHERE ts > $now
"""
OVERRIDES = """
overrides:
  - {rules: [hot_host], match: {node: n2}, params: {above: 95}}
  - {rules: [hot_host], match: {node: n3}, severity: critical}
"""
DRAIN = """
policies:
  - {name: drain_hot, rule: hot_host, protect: [{node: n1}], after: 1m, steps: [{do: drain_node}]}
  - {name: not_yet, rule: hot_host, state: "off", steps: [{do: drain_node}]}
"""


@pytest.mark.slow
async def test_a_backtest_replays_what_the_collectors_configuration_names(
    tmp_path, monkeypatch, capsys
) -> None:
    """Its own rules with their overrides, over a store that a collector serves."""
    rules, config = tmp_path / "rules", tmp_path / "collector.toml"
    rules.mkdir()
    (rules / "own.yaml").write_text(OWN)
    (rules / "overrides.yaml").write_text(OVERRIDES)
    config.write_text(f'rules_dirs = ["{rules}"]\n')
    now = datetime.now(UTC).replace(tzinfo=None)
    database = Database.open(tmp_path / "store", LIMITS)
    put(
        database,
        "host_samples",
        "SELECT $now - to_seconds(10 * s) AS ts, 'n' || n AS node, true AS simulated, "
        "CASE WHEN s BETWEEN 90 AND 179 THEN 90 ELSE 10 END AS cpu_util_percent "
        "FROM range(360) t(s), range(1, 4) u(n)",
        {"now": now},
    )
    put(
        database,
        "nodes",
        "SELECT 'n' || n AS node, 'a' AS agent_id, 'b' AS boot_id, "
        "$now AS last_seen_at, true AS simulated FROM range(1, 4) u(n)",
        {"now": now},
    )
    database.close()
    settings = CollectorSettings(port=0, data_dir=tmp_path / "store")
    async with running(settings, SystemClock()) as collector:
        monkeypatch.setenv("GPUWARDEN_URL", collector.url)
        words = [
            "rules",
            "backtest",
            "hot_host",
            "broken",
            "gpu_allocated_idle",
            "--config",
            str(config),
            "--since",
            "1h",
        ]
        code = await asyncio.to_thread(main, [*words, "--format", "json"])
        found = capsys.readouterr()
        policies = tmp_path / "policies.yaml"
        policies.write_text(DRAIN)
        dry = ["policies", "backtest", str(policies), "--config", str(config), "--since", "1h"]
        assert await asyncio.to_thread(main, [*dry, "--format", "json"]) == 0
        drained = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert await asyncio.to_thread(main, dry) == 0
        assert "drain_hot would have done drain_node once in " in capsys.readouterr().out
    assert {one["labels"]["node"]: one["outcome"] for one in drained} == {
        "n1": "protected",
        "n3": "acted",
    }
    lines = [json.loads(line) for line in found.out.splitlines()]
    (unable,) = [line for line in lines if "cannot_say" in line]
    assert unable["rule"] == "gpu_allocated_idle"
    assert unable["cannot_say"].startswith("no idle_1m between ")
    episodes = {line["labels"]["node"]: line for line in lines if line is not unable}
    assert {node: line["severity"] for node, line in episodes.items()} == {
        "n1": "info",
        "n3": "critical",
    }
    fired_at = datetime.fromisoformat(episodes["n1"]["fired_at"])
    assert abs(fired_at.replace(tzinfo=None) - (now - timedelta(seconds=1790))) <= timedelta(
        seconds=61
    )
    # One rule that is wrong is named in a line, and does not keep the others from being replayed.
    assert code == 1
    (said,) = [line for line in found.err.splitlines() if line.startswith("gpuwarden: ")]
    assert said.startswith("gpuwarden: broken cannot be replayed: ")
