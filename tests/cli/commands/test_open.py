"""`gpuwarden open` finds the page of what is named."""

from typing import Any

import pytest

from gpuwarden_cli.commands.open import PAGES
from gpuwarden_cli.main import main
from gpuwarden_dashboards.routes import routes


def found(*rows: tuple[str, str]) -> dict[str, Any]:
    columns = [{"name": name, "type": "VARCHAR"} for name in ("page", "name")]
    return {"columns": columns, "rows": [list(row) for row in rows], "truncated": False}


def test_the_address_is_printed_without_a_screen(
    answering: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    asked = answering(200, found(("jobs", "ns/web ü")))
    assert main(["open", "ns/web ü"]) == 0
    assert capsys.readouterr().out.endswith("/jobs/ns%2Fweb%20%C3%BC\n")
    assert asked[0]["params"] == {"name": "ns/web ü"}
    assert main(["open", "money"]) == 0
    assert capsys.readouterr().out.endswith("/money\n")
    assert main(["open"]) == 0
    assert len(asked) == 1


def test_a_browser_opens_it(answering: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(200, found(("nodes", "n1")))
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert main(["open", "n1"]) == 0
    assert opened[0].endswith("/nodes/n1")
    assert main(["open", "n1", "--print"]) == 0
    assert len(opened) == 1
    assert capsys.readouterr().out == f"{opened[0]}\n"


def test_what_is_nothing_or_several_things_is_said(answering: Any, capsys: Any) -> None:
    answering(200, found())
    assert main(["open", "n9"]) == 2
    assert "there is no node, GPU, running job, user or incident n9" in capsys.readouterr().err
    answering(200, found(("nodes", "a"), ("users", "a")))
    assert main(["open", "a"]) == 2
    assert capsys.readouterr().err == "gpuwarden: a may be node a, user a: say more of its name\n"


def test_every_page_that_can_be_opened_is_served() -> None:
    paths = {route.path for route in routes(None, None)}  # type: ignore[arg-type]
    assert {f"/{page}" for page in PAGES} <= paths
