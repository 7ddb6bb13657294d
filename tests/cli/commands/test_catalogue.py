"""`gpuwarden models` and `gpuwarden instances`: the catalogue, without a collector."""

import csv
import io
import json
from typing import Any

from gpuwarden.instances import INSTANCES
from gpuwarden.models import MODELS
from gpuwarden_cli.main import main


def printed(capsys: Any, *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--format", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_all_models_are_listed_with_peaks_and_prices(capsys: Any) -> None:
    rows = {row["model"]: row for row in printed(capsys, "models")}
    assert set(rows) == {model.name for model in MODELS}
    h100 = rows["H100-SXM-80GB"]
    assert (h100["tflops"], h100["fp8_tflops"], h100["tdp_watts"]) == (989, 1979, 700)
    assert (h100["usd_per_hour"], h100["spot_usd_per_hour"]) == (2.95, 1.25)
    assert h100["price_from"] == "nebius, 2026-06"
    assert (rows["M4-Max"]["usd_per_hour"], rows["M4-Max"]["tflops"]) == (None, None)


def test_every_word_must_occur(capsys: Any) -> None:
    assert {row["model"] for row in printed(capsys, "models", "GOOGLE", "v5")} == {
        "TPU-v5e",
        "TPU-v5p",
    }
    assert {row["instance"] for row in printed(capsys, "instances", "h100", "oci")} == {
        "BM.GPU.H100.8"
    }
    # By the vendor of the devices, too.
    assert {row["model"] for row in printed(capsys, "instances", "amd")} == {
        "MI300X-192GB",
        "MI355X-288GB",
    }


def test_instances_have_the_price_of_each_of_their_devices(capsys: Any) -> None:
    assert main(["instances", "--format", "csv"]) == 0
    rows = {row["instance"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert len(rows) == len(INSTANCES)
    assert rows["p5.48xlarge"]["usd_per_gpu_hour"] == "6.88"
    assert rows["p5.48xlarge"]["price_from"] == "us-east-1, 2025-12"
    assert (rows["p5e.48xlarge"]["usd_per_hour"], rows["p5e.48xlarge"]["price_from"]) == ("", "")


def test_what_matches_nothing_is_one_line(capsys: Any) -> None:
    assert main(["instances", "p9"]) == 2
    assert capsys.readouterr().err == (
        "gpuwarden: no instances with 'p9' in the catalogue; gpuwarden instances lists all\n"
    )
