"""`gpuwarden schema` against a collector."""

import json
from typing import Any

from gpuwarden.schema import TABLES
from gpuwarden_cli.main import main

TABLE = {
    "name": "gpu_samples",
    "meaning": "One row per GPU and second.",
    "columns": [{"name": "power_watts", "type": "FLOAT", "meaning": "Board power. Unit: watts."}],
}


def test_tables_and_the_columns_of_one_are_shown(answering: Any, capsys: Any) -> None:
    asked = answering(200, {"tables": [TABLE]})
    assert main(["schema"]) == 0
    assert "gpu_samples        1  One row per GPU and second.\n" in capsys.readouterr().out
    assert main(["schema", "GPU_SAMPLES"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("One row per GPU and second.\n\ncolumn")
    assert "power_watts  FLOAT  Board power. Unit: watts.\n" in shown
    assert main(["schema", "gpu_samples", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"column": "power_watts", "type": "FLOAT", "meaning": "Board power. Unit: watts."}
    ]
    assert {one["path"] for one in asked} == {"/v1/schema"}


def test_a_wrong_name_is_one_line_with_the_nearest(answering: Any, capsys: Any) -> None:
    answering(200, {"tables": [{**TABLE, "name": name} for name in TABLES]})
    assert main(["schema", "gpu_sample"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "gpuwarden: there is no table gpu_sample; is it gpu_samples? `gpuwarden schema` and \\d list them\n"
    )
