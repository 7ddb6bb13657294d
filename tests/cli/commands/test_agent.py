"""`gpuwarden agent once`: one reading for people and for programs."""

import json

from gpuwarden_cli.commands.agent import render_reading

TABLES = {
    "gpus": [],
    "gpu_samples": [
        {"ts": 1_767_225_600_000, "node": "n1", "gpu": 0, "util_percent": 97.5},
        {"ts": 1_767_225_600_000, "node": "n1", "gpu": 1, "power_watts": 71.0},
    ],
}


def test_a_wide_row_is_turned_on_its_side() -> None:
    assert render_reading(TABLES, "table").splitlines() == [
        "gpu_samples   0                    1",
        "────────────  ───────────────────  ───────────────────",
        "ts            2026-01-01 00:00:00  2026-01-01 00:00:00",
        "node          n1                   n1",
        "gpu           0                    1",
        "util_percent  97.5                 –",
        "power_watts   –                    71",
    ]


def test_json_has_every_table_and_no_invented_value() -> None:
    document = json.loads(render_reading(TABLES, "json"))
    assert document["gpus"] == []
    assert document["gpu_samples"][1] == {
        "ts": "2026-01-01T00:00:00.000Z",
        "node": "n1",
        "gpu": 1,
        "power_watts": 71.0,
    }
