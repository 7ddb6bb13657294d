"""`gpuwarden notify`: what it prints and how it exits."""

import json

import pytest

from gpuwarden_cli.main import main


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "notify.yaml"
    path.write_text(
        "receivers:\n"
        f"  - {{name: log, file: {tmp_path}/alerts.jsonl}}\n"
        f"  - {{name: gone, file: {tmp_path}/no/alerts.jsonl}}\n"
        "routes: [{receivers: [log], match: {severity: critical}}]\n"
    )
    return path


def test_a_check_names_line_and_column_of_a_mistake(file, capsys) -> None:
    file.write_text("receivers: [{name: a, stdout: true}]\nroutes: [{receivers: [b]}]\n")
    assert main(["notify", "check", str(file)]) == 1
    assert f"{file}:2:23: unknown receiver 'b'; known: a" in capsys.readouterr().err
    assert main(["notify", "check", str(file), "--format", "json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)
    assert (problem["line"], problem["column"]) == (2, 23)


def test_test_sends_to_all_and_says_what_came_back(file, tmp_path, capsys) -> None:
    assert main(["notify", "test", "--file", str(file), "--format", "json"]) == 1
    log, gone = json.loads(capsys.readouterr().out)
    assert (log["receiver"], log["took_it"]) == ("log", True)
    assert gone["answer"].endswith("No such file or directory")
    (line,) = (tmp_path / "alerts.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == "test"


def test_a_test_message_goes_to_the_named_receiver_alone(file, capsys) -> None:
    assert main(["notify", "test", "--file", str(file), "--receiver", "log"]) == 0
    assert "gone" not in capsys.readouterr().out
    assert main(["notify", "test", "--file", str(file), "--receiver", "x"]) == 2
    assert "--receiver x: unknown; known: log, gone" in capsys.readouterr().err
