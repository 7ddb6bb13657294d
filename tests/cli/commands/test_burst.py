"""`gpuwarden agent burst` as a person calls it, on simulated GPUs."""

import csv
import io

import pytest

from gpuwarden_cli.main import main

BURST = ["agent", "burst", "--backend", "simulator"]


def test_it_prints_a_summary_and_graphs_of_the_gpus_asked_for(capsys) -> None:
    assert main([*BURST, "3", "--hz", "20", "--seconds", "1"]) == 0
    streams = capsys.readouterr()
    assert "1 s at 20 Hz" in streams.err
    assert "  3  power_watts" in streams.out
    assert "  0  power_watts" not in streams.out
    assert "readings at 20 Hz" in streams.out


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


def test_a_gpu_that_is_not_there_has_no_samples(capsys) -> None:
    assert main([*BURST, "99", "--hz", "5", "--seconds", "1"]) == 1
    assert "there is no GPU 99 here" in capsys.readouterr().err
