"""`gpuwarden sql` and `gpuwarden alerts list` from the command line."""

import io
import json

import pytest

from gpuwarden_cli.main import main

ALERT_COLUMNS = [
    "severity", "state", "rule", "node", "gpu", "summary", "usd_per_hour", "usd_so_far",
    "began_at", "fired_at", "resolved_at", "simulated", "stale_since",
]  # fmt: skip
FIRING = [
    "warning", "firing", "gpu_idle_held", "n1", 0, "GPU 0 of n1 idle", 2.95, 5.9,
    "2026-01-01T00:00:00.000Z", "2026-01-01T00:30:00.000Z", None, False, None,
]  # fmt: skip


def document(columns, rows, truncated=False) -> dict:
    return {
        "columns": [{"name": c, "type": "VARCHAR"} for c in columns],
        "rows": rows,
        "truncated": truncated,
    }


def test_a_query_prints_its_rows(answering, capsys) -> None:
    answering(200, document(["node"], [["n1"]]))
    assert main(["sql", "select node from nodes", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"node": "n1"}]


def test_a_query_can_come_from_standard_input(answering, monkeypatch) -> None:
    asked = answering(200, document(["n"], [[1]]))
    monkeypatch.setattr("sys.stdin", io.StringIO("select 1 as n"))
    assert main(["sql", "-"]) == 0
    assert asked[0]["sql"] == "select 1 as n"


def test_an_interval_is_a_duration_and_seconds_for_programs(answering, capsys) -> None:
    made = document(["age", "seconds"], [[5_425.25, 5_425.25], [-90, None], [None, 1]])
    made["columns"][0]["type"] = "INTERVAL"
    answering(200, made)
    for form, expected in (
        ("csv", "age,seconds\n1:30:25.25,5425.25\n-0:01:30,\n,1\n"),
        ("table", "age         seconds\n──────────  ───────\n1:30:25.25  5425.25\n-0:01:30          –\n–                 1\n"),
    ):  # fmt: skip
        assert main(["sql", "select 1", "--format", form]) == 0
        assert capsys.readouterr().out == expected
    assert main(["sql", "select 1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {"age": 5425.25, "seconds": 5425.25}


def test_rows_that_were_cut_are_said_on_stderr(answering, capsys) -> None:
    answering(200, document(["n"], [[1]], truncated=True))
    assert main(["sql", "select 1", "--format", "csv"]) == 0
    streams = capsys.readouterr()
    assert streams.out == "n\n1\n"
    assert "stopped at 1 rows" in streams.err


def test_a_wrong_query_is_one_line_and_exit_code_2(answering, capsys) -> None:
    answering(400, {"error": "no such column: utl", "status": 400})
    assert main(["sql", "select utl"]) == 2
    assert capsys.readouterr().err == "gpuwarden: no such column: utl\n"


def test_alerts_show_cost_and_sentence(answering, capsys) -> None:
    asked = answering(200, document(ALERT_COLUMNS, [FIRING]))
    assert main(["alerts", "list"]) == 0
    out = capsys.readouterr().out
    assert "GPU 0 of n1 idle" in out
    assert "5.9" in out
    assert "state IN ('firing', 'pending')" in asked[0]["sql"]


def test_alerts_of_silent_nodes_are_marked_stale(answering, capsys) -> None:
    answering(200, document(ALERT_COLUMNS, [FIRING, [*FIRING[:-1], "2026-01-01T01:00:00.000Z"]]))
    assert main(["alerts", "list", "--exit-code"]) == 1
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert "firing, stale" not in first
    assert "firing, stale" in second


@pytest.mark.parametrize(("rows", "code"), [([FIRING], 1), ([], 0)])
def test_an_exit_code_tells_scripts_whether_something_fires(answering, rows, code) -> None:
    answering(200, document(ALERT_COLUMNS, rows))
    assert main(["alerts", "list", "--exit-code"]) == code


def test_no_alert_is_said_and_still_json_for_programs(answering, capsys) -> None:
    answering(200, document(ALERT_COLUMNS, []))
    main(["alerts", "list", "--state", "firing"])
    assert capsys.readouterr().out == "No alert is firing.\n"
    main(["alerts", "list", "--state", "firing", "--format", "json"])
    assert json.loads(capsys.readouterr().out) == []
