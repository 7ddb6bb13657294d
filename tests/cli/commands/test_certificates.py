"""`gpuwarden collector init`: what it makes, says and writes, and that a second time changes nothing."""

import tomllib
from pathlib import Path

from gpuwarden_cli.main import main


def init(*words: object) -> int:
    return main(["collector", "init", *map(str, words)])


def test_it_makes_what_tls_needs_and_writes_the_settings(tmp_path: Path, capsys) -> None:
    config, data = tmp_path / "collector.toml", tmp_path / "data"
    words = ("--data-dir", data, "--config", config, "--name", "gpu.example", "--host", "0.0.0.0")
    assert init(*words) == 0
    said = capsys.readouterr().out
    assert "for gpu.example, localhost, 127.0.0.1, ::1" in said
    assert tomllib.loads(config.read_text()) == {
        "tls_cert": f"{data}/tls/server.pem",
        "tls_key": f"{data}/tls/server.key",
        "tls_ca": f"{data}/tls/ca.pem",
        "host": "0.0.0.0",
    }
    content = {p: p.read_bytes() for p in (data / "tls").iterdir()}
    assert init(*words) == 0
    assert "(as it was)" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in (data / "tls").iterdir()} == content


def test_renewal_keeps_the_authority_and_the_names(tmp_path: Path, capsys) -> None:
    assert init("--dir", tmp_path, "--name", "gpu.example") == 0
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    assert init("--dir", tmp_path, "--renew") == 0
    assert "gpu.example" in capsys.readouterr().out
    changed = {p.name for p in tmp_path.iterdir() if p.read_bytes() != before[p.name]}
    assert changed == {"server.pem", "server.key"}
