"""`gpuwarden agent burst` as a person calls it, on simulated GPUs."""

import csv
import io

import pytest

from gpuwarden_cli.main import main

BURST = ["agent", "burst", "--backend", "simulator"]


def test_every_sample_is_there_as_csv(capsys) -> None:
    assert main([*BURST, "0", "1", "--hz", "10", "--seconds", "1", "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["gpu"] for row in rows} == {"0", "1"}
    assert {row["source"] for row in rows} == {"polled"}
    assert len({row["at_us"] for row in rows}) in (9, 10)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--hz", "900"], "--hz 900 must be between 1 and 50"),
        (["--hz", "nan"], "--hz nan must be"),
        (["--seconds", "1e9"], "must be between 1 and 600"),
    ],
)
def test_rubbish_is_said_in_a_line(flags: list[str], said: str, capsys) -> None:
    code = main([*BURST, *flags])
    assert code != 0
    assert said in capsys.readouterr().err
