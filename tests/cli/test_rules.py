"""`gpuwarden rules` from the command line."""

import json

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
    mine.write_text(mine.read_text().replace("began: 29m", "began: 5m"))
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
