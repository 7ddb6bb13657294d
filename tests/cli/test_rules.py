"""`gpuwarden rules` from the command line."""

import json
import re

import pytest

from gpuwarden_cli.main import main
from gpuwarden_cli.rules import paths_of
from gpuwarden_rules.language import builtin_paths


def test_the_built_in_pack_is_listed(capsys) -> None:
    assert main(["rules", "list", "--format", "json"]) == 0
    rules = {rule["rule"]: rule for rule in json.loads(capsys.readouterr().out)}
    assert {"gpu_idle_held", "gpu_data_loader_bound", "gpu_thermal_throttle_hw"} <= rules.keys()


def test_the_built_in_pack_is_right_and_its_cases_pass(capsys) -> None:
    assert main(["rules", "check"]) == 0
    assert main(["rules", "test", str(builtin_paths()[-1]).replace(".yaml", ".test.yaml")]) == 0
    assert ", 0 failed" in capsys.readouterr().out


def test_a_wrong_rule_file_is_named_with_its_line(tmp_path, capsys) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rules:\n  - nome: x\n")
    assert main(["rules", "check", str(path)]) == 1
    assert f"{path}:2:" in capsys.readouterr().err


def test_a_problem_has_its_place_in_fields_for_programs(tmp_path, capsys) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("rules:\n  - nome: x\n")
    assert main(["rules", "check", str(path), "--format", "json"]) == 1
    problems = json.loads(capsys.readouterr().out)
    assert {(p["file"], p["line"]) for p in problems} == {(str(path), 2)}


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


def test_a_folder_stands_for_its_rule_files_or_their_tests(tmp_path) -> None:
    for name in ("b.yaml", "a.yaml", "a.test.yaml", "notes.txt"):
        (tmp_path / name).write_text("")
    assert [p.name for p in paths_of([tmp_path], tests=False)] == ["a.yaml", "b.yaml"]
    assert [p.name for p in paths_of([tmp_path], tests=True)] == ["a.test.yaml"]


@pytest.mark.parametrize("tests", [False, True])
def test_no_file_stands_for_the_built_in_pack(tests) -> None:
    assert {p.parent.name for p in paths_of([], tests=tests)} == {"packs"}


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


def test_a_collector_that_refuses_to_reload_is_the_answer_no(answering, capsys) -> None:
    answering(422, {"error": "the old rules go on: r.yaml:1:1: x", "status": 422})
    assert main(["rules", "reload"]) == 1
    assert "r.yaml:1:1" in capsys.readouterr().err
    answering(200, {"rules": 40, "overrides": 2})
    assert main(["rules", "reload"]) == 0


@pytest.mark.parametrize("wrong", [["--since", "soon"], ["--every", "x"], ["gpu_hto"]])
def test_a_backtest_that_is_called_wrong_says_so(wrong, capsys) -> None:
    assert main(["rules", "backtest", *wrong]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_backtest_of_a_collector_without_history_says_so(answering, capsys) -> None:
    columns = [{"name": "first_at", "type": "TIMESTAMP"}]
    answering(200, {"columns": columns, "rows": [[None]], "truncated": False})
    assert main(["rules", "backtest", "gpu_idle_held"]) == 0
    assert "no samples to replay" in capsys.readouterr().err
