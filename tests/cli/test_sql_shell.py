"""The shell for fleet SQL: entries, commands, completion, and a whole session over a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_cli.sql_shell import Shell, entries, is_whole
from gpuwarden_client.http import QueryAnswer


def shell(asked: list[str] | None = None, rows: int = 1) -> Shell:
    """One that answers each query with so many rows, in a quarter of a second by its clock."""
    now = iter(range(10**6))

    def ask(sql: str) -> QueryAnswer:
        if asked is not None:
            asked.append(sql)
        return QueryAnswer(["n"], [[n] for n in range(rows)], False, ["BIGINT"])

    return Shell(ask, clock=lambda: next(now) / 4)


def test_a_query_prints_its_rows_and_what_it_took() -> None:
    asked: list[str] = []
    made = shell(asked)
    assert made.enter("select 1 as n;") == "n\n─\n0\n1 row, 250 ms\n"
    assert asked == ["select 1 as n"]
    made.enter("\\timing")
    assert made.enter("select 1;").endswith("1 row\n")
    made.enter("\\format ndjson")
    assert made.enter("select 1;") == '{"n": 0}\n'
    assert made.enter(";") == ""


@pytest.mark.parametrize(
    ("text", "is_done"),
    [
        ("select 1", False), ("select 1;", True), ("select ';'", False), ("select ';';", True),
        ("select 1; -- why", True), ("select 1 -- why;", False), ("select /* ; */ 1", False),
        ("select /* ;", False), ('select "a;b', False), ("\\d gpus", True), ("", True),
        ("select 'it''s';", True),
    ],
)  # fmt: skip
def test_an_entry_ends_at_a_semicolon_of_its_own(text: str, is_done: bool) -> None:
    assert is_whole(text) is is_done


@given(st.lists(st.text("ab;'\"-/*\n \\", max_size=30), max_size=8))
def test_whatever_is_typed_becomes_entries_and_nothing_is_lost_between(lines: list[str]) -> None:
    typed = iter([*lines, "';", '";', "*/;", ";"])

    def read(prompt: str) -> str:
        for line in typed:
            return line
        raise EOFError

    for entry in entries(read):
        assert is_whole(entry)


def test_a_query_typed_in_a_terminal_prints_its_rows(answering, tmp_path: Path) -> None:
    answering(
        200, {"columns": [{"name": "n", "type": "BIGINT"}], "rows": [[42]], "truncated": False}
    )
    here, there = pty.openpty()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "PAGER": "cat"}
    child = subprocess.Popen(
        [sys.executable, "-c", "from gpuwarden_cli.main import main; raise SystemExit(main(['sql']))"],
        stdin=there, stdout=there, stderr=there, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(there)
    said = b""
    try:
        for wait, typed in ((b"gpuwarden>", b"select 42\r;\r"), (b"1 row", b"\\q\r")):
            deadline = time.monotonic() + 60
            while wait not in said and time.monotonic() < deadline:
                if select.select([here], [], [], 0.2)[0]:
                    said += os.read(here, 65536)
            assert wait in said, said[-2000:]
            os.write(here, typed)
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.wait()
        os.close(here)
    assert "select 42" in (tmp_path / "gpuwarden" / "sql_history").read_text()
