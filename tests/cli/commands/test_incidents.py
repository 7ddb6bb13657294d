"""`gpuwarden incidents` and `gpuwarden alerts list`: the SQL that they send, on real tables, and what they print."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.each import each

from gpuwarden_cli.commands import alerts, incidents
from gpuwarden_cli.main import main
from gpuwarden_client.http import QueryAnswer
from gpuwarden_rules.testing import MemoryDatabase

NOW = datetime.now(UTC).replace(microsecond=0)
AGO = NOW - timedelta(hours=2, minutes=1)


def alert(
    name: str, rule: str, consequence: str, severity: str = "warning", **changes: Any
) -> dict[str, Any]:
    row = {
        "fingerprint": f"{name}00000000", "rule": rule, "severity": severity, "consequence": consequence,
        "state": "firing", "node": "n1", "gpu": 3, "gpu_uuid": "GPU-abc", "labels": "{}",
        "summary": f"{rule} speaks.", "remedy": "Do it.", "usd_per_hour": 2.5, "began_at": AGO,
        "active_at": AGO, "fired_at": AGO, "seen_at": NOW, "simulated": False,
    }  # fmt: skip
    return row | changes


def member(incident: str, name: str, cause: str | None = None) -> dict[str, Any]:
    return {
        "incident": incident, "fingerprint": f"{name}00000000", "active_at": AGO, "rule": "r", "labels": "{}",
        "cause": cause, "joined_at": AGO, "ended_at": None,
    }  # fmt: skip


def incident(
    name: str, rule: str, consequence: str, severity: str, **changes: Any
) -> dict[str, Any]:
    row = {
        "id": name, "state": "open", "root": "aaaaaaaa00000000", "rule": rule, "severity": severity,
        "consequence": consequence, "summary": f"{rule} speaks.", "remedy": "Do it.", "place": "n1 GPU 3",
        "labels": "{}", "nodes": 1, "roots": 1, "alerts": 2, "firing": 2, "usd_per_hour": 2.5,
        "simulated": False, "began_at": AGO, "opened_at": AGO,
    }  # fmt: skip
    return row | changes


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryDatabase]:
    """A collector's tables; the commands ask them directly."""
    database = MemoryDatabase()

    def ask(
        sql: str, params: dict[str, Any] | None = None, *, url: str | None = None
    ) -> QueryAnswer:
        found = database.run(sql, params or None)
        rows = [
            [value.isoformat() if isinstance(value, datetime) else value for value in row]
            for row in found.rows
        ]
        return QueryAnswer(list(found.columns), rows, False)

    for module in (alerts, incidents):
        monkeypatch.setattr(module, "ask", ask)
    monkeypatch.setattr(alerts, "unjudged_at", lambda _url: None)
    muted = "silenced until 18:00 UTC by alice"
    job = '{"job": "4711", "host": "c1"}'
    rows = [
        alert("dddddddd", "gpu_idle_held", "waste", owner="ann", usd_per_hour=90.0),
        alert("cccccccc", "row_remap_pending", "failing_hardware", muted=muted, usd_per_hour=None),
        alert("aaaaaaaa", "gpu_power_brake", "slow_work", "critical", gpu=5, gpu_uuid="GPU-def"),
        alert(
            "bbbbbbbb",
            "node_down",
            "lost_work",
            "critical",
            node="n2",
            gpu=None,
            gpu_uuid=None,
            labels=job,
        ),
        alert("eeeeeeee", "gpu_hot", "slow_work", state="pending", fired_at=None, stale_since=AGO),
        alert("ffffffff", "gpu_lost", "lost_work", "critical", state="resolved", resolved_at=NOW),
    ]
    database.insert("alerts", rows)
    database.insert(
        "incidents",
        [
            incident("1a1a", "gpu_idle_held", "waste", "warning"),
            incident("2b2b", "gpu_power_brake", "slow_work", "critical", muted=muted),
            incident("3c3c", "node_down", "lost_work", "critical", state="merged", merged_into="2b2b",
                     resolved_at=NOW),
        ],
    )  # fmt: skip
    database.insert(
        "incident_alerts",
        [
            member("1a1a", "dddddddd"), member("2b2b", "aaaaaaaa"),
            member("2b2b", "cccccccc", "aaaaaaaa00000000"), member("3c3c", "aaaaaaaa"),
        ],
    )  # fmt: skip
    yield database
    database.close()


def test_alerts_are_listed_with_id_place_age_and_how_to_acknowledge_the_gravest_first(
    fleet, capsys
) -> None:
    assert main(["alerts", "list", "--exit-code"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:7]] == [
        "bbbbbbbb", "aaaaaaaa", "cccccccc", "dddddddd", "eeeeeeee",
    ]  # fmt: skip
    assert lines[0].split() == [
        "id",
        "severity",
        "state",
        "rule",
        "place",
        "age",
        "cost",
        "summary",
    ]
    assert "firing, silenced" in lines[4]
    assert "pending, stale" in lines[6]
    assert "n1 GPU 5" in lines[3]
    assert re.search(r" 2 h \d\d min ", lines[3])
    assert lines[7] == "acknowledge one: gpuwarden alerts ack bbbbbbbb"


@each(
    ("flags", "found"),
    [
        (["--node", "n?", "--gpu", "5"], "a"),
        (["--gpu", "gpu-ABC", "--state", "firing"], "cd"),
        (["--owner", "ann"], "d"),
        (["--job", "4711"], "b"),
        (["--rule", "gpu_*", "--severity", "critical"], "a"),
        (["--state", "resolved"], "f"),
        (["--state", "all", "--severity", "critical"], "baf"),
    ],
)
def test_alerts_are_chosen_by_place_owner_job_rule_severity_and_state(
    fleet, capsys, flags, found
) -> None:
    main(["alerts", "list", *flags, "--format", "json"])
    assert "".join(row["fingerprint"][0] for row in json.loads(capsys.readouterr().out)) == found


def test_no_alert_is_said_with_what_was_asked_for_and_an_incident_stands_beside_its_alert(
    fleet, capsys
) -> None:
    assert main(["alerts", "list", "--owner", "bob", "--exit-code"]) == 0
    assert capsys.readouterr().out == "No alert is active, owner bob.\n"
    main(["alerts", "list", "--node", "n1", "--format", "json"])
    found = {row["rule"]: row["incident"] for row in json.loads(capsys.readouterr().out)}
    assert found == {
        "gpu_power_brake": "2b2b", "row_remap_pending": "2b2b", "gpu_idle_held": "1a1a", "gpu_hot": None,
    }  # fmt: skip


def test_incidents_are_listed_the_gravest_first_and_chosen_by_their_alerts(fleet, capsys) -> None:
    assert main(["incidents", "list", "--exit-code"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["2b2b", "1a1a"]
    assert "open, silenced" in lines[2]
    assert lines[4].startswith("its alerts: gpuwarden incidents show 2b2b")
    for flags, found in (
        (["--rule", "row_*"], ["2b2b"]),
        (["--owner", "ann"], ["1a1a"]),
        (["--state", "all", "--gpu", "5"], ["2b2b", "3c3c"]),
        (["--job", "4711"], []),
    ):
        main(["incidents", "list", *flags, "--format", "json"])
        assert [row["id"] for row in json.loads(capsys.readouterr().out)] == found
    main(["incidents", "list", "--job", "4711"])
    assert capsys.readouterr().out == "No incident is open, job 4711.\n"


def test_an_incident_is_shown_with_its_alerts_roots_first(fleet, capsys) -> None:
    assert main(["incidents", "show", "2b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "OPEN critical: gpu_power_brake speaks."
    assert lines[1] == "  muted        silenced until 18:00 UTC by alice"
    assert "  acknowledge  gpuwarden incidents ack 2b2b" in lines
    assert [line.split()[:2] for line in lines[-2:]] == [
        ["aaaaaaaa", "root"],
        ["cccccccc", "follows"],
    ]
    assert main(["incidents", "show", "3c3c", "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["merged_into"], [m["id"] for m in found["members"]]) == ("2b2b", ["aaaaaaaa"])
    assert main(["incidents", "show", "9"]) == 2
    assert "there is no incident '9'" in capsys.readouterr().err


def test_an_incident_is_acknowledged_by_its_roots(fleet, capsys, answering) -> None:
    asked = answering(201, {"ends_at": "2026-01-01T14:00:00.000Z"})
    assert main(["incidents", "ack", "2b2b", "--for", "2h"]) == 0
    assert [(found["fingerprint"], found["for"]) for found in asked] == [("aaaaaaaa00000000", "2h")]
    assert capsys.readouterr().out == "acknowledged until 2026-01-01 14:00 UTC\n"


def test_rules_that_have_not_run_are_said_instead_of_nothing(fleet, monkeypatch, capsys) -> None:
    unjudged = "Not judged yet, since 12:00: 3 of 60 rules have run on fresh data."
    monkeypatch.setattr(alerts, "unjudged_at", lambda _url: unjudged)
    for command in (["alerts", "list"], ["incidents", "list"]):
        assert main([*command, "--owner", "bob", "--exit-code"]) == 1
        assert capsys.readouterr() == ("", f"{unjudged}\n")
        assert main(command) == 0
        said = capsys.readouterr()
        assert ("gpu_idle_held" in said.out, said.err) == (True, f"{unjudged}\n")
        state = ["--state", "resolved", "--owner", "bob"]
        assert main([*command, *state]) == 0
        assert capsys.readouterr().err == ""
