"""`gpuwarden sql` from the command line."""

import io
import json

from gpuwarden_cli.main import main


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
