"""`gpuwarden alerts silence|ack|unsilence|silences` from the command line."""

import pytest

from gpuwarden_cli.commands.alerts import fingerprint_of
from gpuwarden_cli.main import main
from gpuwarden_client.http import CallError

SILENCE = {
    "id": "5427dc88",
    "matchers": ["node=n1"],
    "fingerprint": None,
    "author": "alice",
    "comment": "rack moves",
    "starts_at": "2026-01-01T12:00:00.000Z",
    "ends_at": "2026-01-01T14:00:00.000Z",
    "alerts": 1,
}


def named(*fingerprints: str) -> dict:
    columns = [{"name": n, "type": "VARCHAR"} for n in ("fingerprint", "rule", "n", "g", "summary")]
    rows = [[name, "gpu_hot", "n1", 0, f"GPU {i} is hot"] for i, name in enumerate(fingerprints)]
    return {"columns": columns, "rows": rows, "truncated": False}


def test_a_silence_is_asked_for_with_its_end_and_reason(answering, capsys) -> None:
    asked = answering(201, SILENCE)
    command = [
        "alerts",
        "silence",
        "node=n1",
        "rule=~gpu_.*",
        "--for",
        "2h",
        "--comment",
        "rack moves",
    ]
    assert main(command) == 0
    assert asked == [
        {
            "path": "/v1/silences",
            "matchers": ["node=n1", "rule=~gpu_.*"],
            "for": "2h",
            "comment": "rack moves",
        }
    ]
    assert capsys.readouterr().out == (
        "silence 5427dc88 until 2026-01-01 14:00 UTC, of 1 alert now\n"
    )


def test_a_silence_is_ended(answering, capsys) -> None:
    asked = answering(200, b"")
    assert main(["alerts", "unsilence", "54/27"]) == 0
    assert asked[0]["path"] == "/v1/silences/54%2F27"


def test_an_alert_is_named_by_its_first_digits(answering) -> None:
    answering(200, named("5427dc882fca0000"))
    assert fingerprint_of("5427", None) == "5427dc882fca0000"


def test_a_name_of_several_alerts_or_none_says_what_there_is(answering) -> None:
    answering(200, named("aaaa000000000000", "aaab000000000000"))
    with pytest.raises(CallError, match="2 alerts are called 'aa': aaaa000000000000 GPU 0 is hot"):
        fingerprint_of("aa", None)
    answering(200, named())
    with pytest.raises(CallError, match="no alert is called 'gpu_hto'"):
        fingerprint_of("gpu_hto", None)


def test_an_instant_stands_instead_of_a_time(answering) -> None:
    asked = answering(201, SILENCE)
    assert main(["alerts", "silence", "node=n1", "--until", "2026-01-01T14:00:00Z"]) == 0
    assert asked[0]["ends_at"] == "2026-01-01T14:00:00Z"
    assert "for" not in asked[0]
