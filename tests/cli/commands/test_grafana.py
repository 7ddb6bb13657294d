"""`gpuwarden grafana export` into a folder of provisioning."""

import json
from pathlib import Path
from typing import Any

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
    assert {name.rsplit("/", 1)[0] for name in boards} == {"dashboards/gpuwarden"}
    (provider,) = found["dashboards/gpuwarden.yaml"]["providers"]
    assert provider["options"]["path"] == str(tmp_path / "provisioning/dashboards/gpuwarden")
    (prometheus,) = found["datasources/gpuwarden.yaml"]["datasources"]
    assert prometheus["url"] == f"{URL}/prometheus"
    assert prometheus["secureJsonData"]["httpHeaderValue1"] == "Bearer $GPUWARDEN_TOKEN"
    for name in boards:
        source, page = (
            next(v for v in found[name]["templating"]["list"] if v["name"] == wanted)
            for wanted in ("datasource", "page")
        )
        assert page["query"] == page["current"]["value"] == URL
        assert source["current"]["value"] == prometheus["uid"]
        assert source["query"] == prometheus["type"]
    said = capsys.readouterr().out
    assert f"{len(boards)} dashboards and their data source are in" in said
    assert "set GPUWARDEN_TOKEN in Grafana's environment" in said


def test_an_authority_goes_into_the_data_source(tmp_path: Path) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(pem)
    found = exported(tmp_path / "out", "--url", URL, "--ca", str(tmp_path / "ca.pem"))
    (source,) = found["datasources/gpuwarden.yaml"]["datasources"]
    assert source["secureJsonData"]["tlsCACert"] == pem
    assert source["jsonData"]["tlsAuthWithCACert"] is True


def test_a_second_export_replaces_the_files_and_leaves_others(tmp_path: Path) -> None:
    other = tmp_path / "dashboards" / "ours.yaml"
    other.parent.mkdir()
    other.write_text("ours")
    first = tmp_path / "dashboards" / "gpuwarden" / "fleet.json"
    for url in (URL, "https://other.example"):
        assert main(["grafana", "export", str(tmp_path), "--url", url]) == 0
        assert url in first.read_text()
    assert other.read_text() == "ours"
    assert list(tmp_path.rglob(".*")) == []
    assert first.stat().st_mode & 0o777 == 0o644  # Grafana runs as another user


def test_on_this_host_no_token_is_sent(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.delenv("GPUWARDEN_URL", raising=False)
    for url in ((), ("--url", "http://[::1]:8750"), ("--url", "http://localhost:8750")):
        (source,) = exported(tmp_path, *url)["datasources/gpuwarden.yaml"]["datasources"]
        assert source["secureJsonData"] == {}
        assert "TOKEN" not in capsys.readouterr().out
