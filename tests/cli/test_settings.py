"""Settings: `config` shows them and their sources; keys of a file are set and the rest stays."""

import json
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_cli.main import main
from gpuwarden_cli.settings import set_keys


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch) -> None:
    for name in ("GPUWARDEN_URL", "GPUWARDEN_AGENT_COLLECTOR_URL", "GPUWARDEN_COLLECTOR_PORT"):
        monkeypatch.delenv(name, raising=False)


def shown(argv, capsys) -> dict[str, SimpleNamespace]:
    assert main([*argv, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    return {row["setting"]: SimpleNamespace(**row) for row in rows}


def test_the_agent_follows_gpuwarden_url_unless_told_otherwise(monkeypatch, capsys) -> None:
    monkeypatch.setenv("GPUWARDEN_URL", "http://127.0.0.1:9999")
    assert shown(["agent", "config"], capsys)["collector_url"].value == "http://127.0.0.1:9999"
    told = shown(["agent", "config", "--collector-url", "http://127.0.0.1:1"], capsys)
    assert told["collector_url"].source == "--collector-url"


EXAMPLE = """# Settings of the agent.
# collector_url = "http://127.0.0.1:8750"

batch_s = 5.0  # as we like it
exporter_names = [
  "own",  # one
]

[labels]
rack = "4"
"""


def test_keys_are_set_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(EXAMPLE)
    path.chmod(0o640)
    assert set_keys(path, {"collector_url": "https://c", "token_file": '/a "b"'})
    text = path.read_text()
    assert tomllib.loads(text) == {
        **tomllib.loads(EXAMPLE),
        "collector_url": "https://c",
        "token_file": '/a "b"',
    }
    assert [line for line in EXAMPLE.splitlines() if line not in text.splitlines()] == []
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_same_again_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new" / "agent.toml"
    assert set_keys(path, {"a": "b"})
    before = path.stat()
    assert not set_keys(path, {"a": "b"})
    assert path.stat().st_ino == before.st_ino
    assert os.listdir(path.parent) == ["agent.toml"]


@pytest.mark.parametrize("content", [b"a = ", b"\xff"])
def test_a_file_that_is_no_toml_is_named_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(content)
    with pytest.raises(StartError, match=f"{path}: not valid TOML"):
        set_keys(path, {"a": "b"})
    assert path.read_bytes() == content
