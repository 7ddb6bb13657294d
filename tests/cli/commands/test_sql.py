"""`gpuwarden sql` from the command line."""

import io
import json
import socket
import threading

import pytest

from gpuwarden_cli.commands.sql import EXPORT_ROWS_MAX
from gpuwarden_cli.main import main


@pytest.fixture
def breaking_off(monkeypatch):
    """`breaking_off(part)` makes GPUWARDEN_URL a server that closes behind that part of an answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(part: bytes) -> None:
        taken, _ = listener.accept()
        with taken:
            taken.recv(65_536)
            taken.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            taken.sendall(b"%x\r\n%s\r\n" % (len(part), part))

    def start(part: bytes) -> None:
        threading.Thread(target=serve, args=(part,), daemon=True).start()
        monkeypatch.setenv("GPUWARDEN_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")

    yield start
    listener.close()


def document(columns, rows, truncated=False) -> dict:
    return {
        "columns": [{"name": c, "type": "VARCHAR"} for c in columns],
        "rows": rows,
        "truncated": truncated,
    }


def test_an_interval_is_a_duration_and_seconds_for_programs(answering, capsys) -> None:
    made = document(["age", "seconds"], [[5_425.25, 5_425.25], [-90, None], [None, 1]])
    made["columns"][0]["type"] = "INTERVAL"
    answering(200, made)
    expected = "age         seconds\n──────────  ───────\n1:30:25.25  5425.25\n-0:01:30          –\n–                 1\n"
    assert main(["sql", "select 1"]) == 0
    assert capsys.readouterr().out == expected
    assert main(["sql", "select 1", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {"age": 5425.25, "seconds": 5425.25}


def test_rows_that_were_cut_are_said_on_stderr(answering, capsys) -> None:
    answering(200, document(["n"], [[1]], truncated=True))
    assert main(["sql", "select 1", "--format", "markdown"]) == 0
    streams = capsys.readouterr()
    assert streams.out == "| n |\n| --- |\n| 1 |\n"
    assert "stopped at 1 rows" in streams.err
    answering(200, b"n\r\n1\r\n# gpuwarden.truncated: there are more rows than these 1\r\n")
    assert main(["sql", "select 1", "--format", "csv"]) == 0
    assert "the collector cut the rows" in capsys.readouterr().err


def test_what_the_collector_encodes_is_handed_on_as_it_comes(answering, capsysbinary) -> None:
    body = bytes(range(256)) * 4096
    asked = answering(200, body)
    for form in ("arrow", "parquet", "csv", "ndjson"):
        assert main(["sql", "select 1", "--format", form]) == 0
        assert capsysbinary.readouterr().out == body
    assert {one["row_limit"] for one in asked} == {EXPORT_ROWS_MAX}


def test_an_answer_that_fails_after_its_first_rows_is_not_taken_as_whole(
    answering, breaking_off, capsys
) -> None:
    said = {"gpuwarden.error": {"error": "Could not convert 'x'", "status": 400}}
    answering(200, b'{"n":1}\n' + json.dumps(said).encode() + b"\n")
    assert main(["sql", "select 1", "--format", "ndjson"]) == 2
    assert capsys.readouterr().err == "gpuwarden: Could not convert 'x'\n"
    breaking_off(b"n\r\n1\r\n")
    assert main(["sql", "select 1", "--format", "csv"]) == 2
    assert "the answer broke off after 0.0 MiB: the query failed" in capsys.readouterr().err


def test_a_file_and_parameters_are_sent_and_lines_and_markdown_are_printed(
    answering, capsys, tmp_path
) -> None:
    asked = answering(200, document(["a|b", "n"], [["x|y", None]]))
    file = tmp_path / "question.sql"
    file.write_text("select $n, $since, $name")
    given = [f"--param={one}" for one in ("n=5", "since=2026-01-31T12:00:00Z", "name=ada")]
    assert main(["sql", "--file", str(file), *given, "--format", "markdown"]) == 0
    assert capsys.readouterr().out == "| a\\|b | n |\n| --- | --- |\n| x\\|y | – |\n"
    since = {"timestamp": "2026-01-31T12:00:00Z"}
    assert asked == [
        {
            "path": "/v1/sql",
            "sql": file.read_text(),
            "params": {"n": 5, "since": since, "name": "ada"},
        }
    ]
    for wrong, why in (
        (["select 1", "--file", str(file)], "give either a query or --file"),
        (["select 1", "--param", "n"], "--param n is not NAME=VALUE"),
        (["select 1", "--watch", "soon"], "--watch soon is not a duration"),
        (["--file", str(tmp_path / "none.sql")], "none.sql"),
    ):
        assert main(["sql", *wrong]) == 2
        assert why in capsys.readouterr().err


def test_a_query_can_come_from_standard_input(answering, monkeypatch) -> None:
    asked = answering(200, document(["n"], [[1]]))
    monkeypatch.setattr("sys.stdin", io.StringIO("select 1 as n"))
    assert main(["sql", "-"]) == 0
    assert asked[0]["sql"] == "select 1 as n"
