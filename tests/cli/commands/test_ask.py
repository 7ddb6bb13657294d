"""`gpuwarden ask` lists the cookbook and asks its questions."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden.cookbook import question_named, questions
from gpuwarden_cli.main import main

ANSWER = {"columns": [{"name": "job", "type": "VARCHAR"}], "rows": [["7"]], "truncated": False}


def test_without_a_question_all_are_listed_by_topic(capsys: Any) -> None:
    assert main(["ask"]) == 0
    shown = capsys.readouterr().out
    assert "WASTE\n  waste-by-user" in shown
    assert (
        "idle-holders         jobs that held idle GPUs, and their owners (since=1d, top=20)\n"
        in shown
    )
    assert main(["ask", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == [one.name for one in questions()]
    assert listed[1]["parameters"] == {"minutes": "5"}


def test_a_question_is_asked_with_its_defaults_and_what_is_given(
    answering: Any, capsys: Any
) -> None:
    asked = answering(200, ANSWER)
    assert main(["ask", "idle-holders", "--since", "2h", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"job": "7"}]
    assert asked[0]["sql"] == question_named("idle-holders").sql
    assert asked[0]["params"]["top"] == 20
    since = datetime.fromisoformat(asked[0]["params"]["since"]["timestamp"])
    assert abs(datetime.now(UTC) - since - timedelta(hours=2)) < timedelta(minutes=1)
    assert main(["ask", "gpus-now", "--param", "node=n*=1"]) == 0
    assert asked[1]["params"] == {"node": "n*=1"}


def test_what_is_wrong_is_one_line(capsys: Any) -> None:
    for given, said in (
        (["--format", "arrow"], "name a question: the list of them is not made as arrow"),
        (["idle"], "there is no question idle; is it idle-now? `gpuwarden ask` lists them"),
        (["idle-now", "--since", "1d"], "idle-now has no parameter since; it takes minutes"),
        (["idle-now", "--param", "minutes"], "--param minutes is not NAME=VALUE"),
        (["idle-now", "--param", "minutes=x"], "minutes = x is not a number"),
    ):
        assert main(["ask", *given]) == 2
        assert capsys.readouterr().err == f"gpuwarden: {said}\n"
