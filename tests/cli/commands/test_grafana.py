"""`gpuwarden grafana export` into a folder of provisioning."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwarden_cli.main import main

URL = "https://collector.example:8750"


def exported(folder: Path, *arguments: str) -> dict[str, Any]:
    """Documents by path below the folder."""
    assert main(["grafana", "export", str(folder), *arguments]) == 0
    read = {".json": json.loads, ".yaml": yaml.safe_load}
    return {
        str(path.relative_to(folder)): read[path.suffix](path.read_text())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_folder_has_all_that_grafana_provisions(tmp_path: Path, capsys: Any) -> None:
    found = exported(tmp_path / "provisioning", "--url", f"{URL}/")
    boards = {name for name in found if name.endswith(".json")}
    assert {name.rsplit("/", 1)[0] for name in boards} == {
        "dashboards/gpuwarden/prometheus", "dashboards/gpuwarden/postgresql",
    }  # fmt: skip
    (provider,) = found["dashboards/gpuwarden.yaml"]["providers"]
    assert provider["options"]["path"] == str(tmp_path / "provisioning/dashboards/gpuwarden")
    prometheus, postgresql = found["datasources/gpuwarden.yaml"]["datasources"]
    assert prometheus["url"] == f"{URL}/prometheus"
    assert prometheus["secureJsonData"]["httpHeaderValue1"] == "Bearer $GPUWARDEN_TOKEN"
    assert postgresql["url"] == "collector.example:5432"
    assert postgresql["jsonData"]["sslmode"] == "verify-full"
    for name in boards:
        source, page = (
            next(v for v in found[name]["templating"]["list"] if v["name"] == wanted)
            for wanted in ("datasource", "page")
        )
        assert page["query"] == page["current"]["value"] == URL
        assert source["current"]["value"] in (prometheus["uid"], postgresql["uid"])
        assert source["query"] in (prometheus["type"], postgresql["type"])
    assert "set GPUWARDEN_TOKEN in Grafana's environment" in capsys.readouterr().out


def test_on_this_host_no_token_is_sent_and_one_set_may_be_chosen(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.delenv("GPUWARDEN_URL", raising=False)
    found = exported(tmp_path, "--only", "postgresql", "--postgres-port", "15432")
    (source,) = found["datasources/gpuwarden.yaml"]["datasources"]
    assert source["url"] == "127.0.0.1:15432"
    assert source["secureJsonData"] == {}
    assert not any("prometheus" in name for name in found)


def test_an_authority_goes_into_both_data_sources(tmp_path: Path) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(pem)
    found = exported(tmp_path / "out", "--url", URL, "--ca", str(tmp_path / "ca.pem"))
    sources = found["datasources/gpuwarden.yaml"]["datasources"]
    assert [source["secureJsonData"]["tlsCACert"] for source in sources] == [pem, pem]


def test_a_second_export_replaces_the_files_and_leaves_others(tmp_path: Path) -> None:
    other = tmp_path / "dashboards" / "ours.yaml"
    other.parent.mkdir()
    other.write_text("ours")
    first = tmp_path / "dashboards" / "gpuwarden" / "prometheus" / "fleet.json"
    for url in (URL, "https://other.example"):
        assert main(["grafana", "export", str(tmp_path), "--url", url]) == 0
        assert url in first.read_text()
    assert other.read_text() == "ours"
    assert list(tmp_path.rglob(".*")) == []
    assert first.stat().st_mode & 0o777 == 0o644  # Grafana runs as another user


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "ca.pem").write_text("nothing")
    for arguments, said in (
        (["--url", "collector"], "'collector' is not the collector's address: write it as https://"),
        (["--ca", str(tmp_path / "no.pem")], "no.pem cannot be read: No such file"),
        (["--ca", str(tmp_path / "ca.pem")], "ca.pem has no certificate"),
        (["--only", "loki"], "invalid choice: 'loki'"),
    ):  # fmt: skip
        try:
            assert main(["grafana", "export", str(tmp_path / "out"), *arguments]) == 2
        except SystemExit as ended:
            assert ended.code == 2
        line = capsys.readouterr().err
        assert said in line and line.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert main(["grafana", "export", str(tmp_path / "file")]) == 2
    assert "file" in (line := capsys.readouterr().err) and line.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://[fd00::7]:8750", "[fd00::7]:5432"), ("http://10.0.0.1", "10.0.0.1:5432")],
)
def test_the_host_of_postgresql_is_that_of_the_address(url: str, host: str, tmp_path: Path) -> None:
    found = exported(tmp_path, "--url", url)
    assert found["datasources/gpuwarden.yaml"]["datasources"][1]["url"] == host
