"""Lines of `xpu-smi dump`: whose values they are, and of which day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.importing.conftest import AT_MS

from gpuwarden.clock import from_ms
from gpuwarden_importing.detect import format_of
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError
from gpuwarden_importing.xpu_smi import days_before, read

MIB = 1 << 20
HEADER = (
    "Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Core Temperature (Celsius Degree), "
    "GPU Memory Temperature (Celsius Degree), GPU Memory Utilization (%), GPU Energy Consumed (J), GPU Memory Used (MiB)\n"
)


def line(time: str, gpu: int = 0, util: str = "87.50") -> str:
    return f"{time},    {gpu}, {util}, 106.60, 1600,  52.00,  N/A, 0.05, 95554.67, 28.00\n"


def times(found) -> list[str]:
    return [f"{from_ms(row['ts']):%m-%d %H:%M:%S.%f}"[:-3] for row in found["gpu_samples"]]


def test_values_are_those_of_the_header(imported) -> None:
    text = HEADER + line("2026-07-20 06:14:46.000") + line("2026-07-20 06:14:46.001", 3, "N/A")
    assert format_of(["Start dumping", *text.splitlines()], Origin()) == "xpu-smi dump"
    found = imported(read, text)
    assert found["gpu_samples"][0] == {
        "ts": 1_784_528_086_000, "node": "n1", "gpu": 0, "gpu_uuid": "gpu-0@n1", "util_percent": 87.5,
        "power_watts": 106.6, "sm_clock_mhz": 1600, "temperature_celsius": 52.0, "memory_temperature_celsius": None,
        "energy_joules_total": 95554.67, "memory_used_bytes": 28 * MIB,
    }  # fmt: skip
    assert (found["gpu_samples"][1]["gpu"], found["gpu_samples"][1]["util_percent"]) == (3, None)
    assert found.tally.unmapped == {"GPU Memory Utilization (%)": 2}
    assert not any("no date" in note for note in found.tally.notes)
    assert {row["gpu_uuid"]: row["vendor"] for row in found["gpus"]} == {
        "gpu-0@n1": "intel", "gpu-3@n1": "intel",
    }  # fmt: skip


def test_times_of_day_are_before_the_end_of_the_file(imported) -> None:
    at = from_ms(AT_MS)
    end = f"{at:%H:%M:%S}.000"
    lines = ["23:59:58.000", "23:59:59.001", "23:59:59.000", "00:00:00.000", end]
    found = imported(read, HEADER + "".join(map(line, lines)))
    today, before = f"{at:%m-%d}", f"{from_ms(AT_MS - 86_400_000):%m-%d}"
    days = [before, before, before, today, today]
    assert times(found) == [f"{day} {time}" for day, time in zip(days, lines, strict=True)]
    assert any("no date" in note for note in found.tally.notes)
    # A last line that would be after the end is of the day before.
    later = f"{from_ms(AT_MS + 60_000):%H:%M:%S}.000"
    assert times(imported(read, HEADER + line(later))) == [
        f"{from_ms(AT_MS + 60_000 - 86_400_000):%m-%d} {later}"
    ]


def test_what_is_no_line_of_a_gpu_is_counted(imported) -> None:
    half = line("06:14:46.000")[:30] + "\n"
    tiles = "Timestamp, DeviceId, TileId, GPU Utilization (%)\n06:14:46.000, 0, 1, 5.00\n"
    found = imported(
        read, "rubbish\n\n" + HEADER + half + line("25:00:00.000") + line("06:14:46.000") + tiles
    )
    assert len(found["gpu_samples"]) == 1
    assert {reason: one.count for reason, one in found.tally.skipped.items()} == {
        "other text, or half of a line": 2,
        "readings of a tile: dump without --tile gives the GPU's": 1,
        "timestamp is not a time": 1,
    }
    with pytest.raises(UnreadableError, match="--at"):
        imported(read, HEADER + line("06:14:46.000"), at_ms=None)
    with pytest.raises(UnreadableError, match="--node"):
        imported(read, HEADER, node=None)


@given(st.lists(st.none() | st.floats(0, 86_399)))
def test_no_line_is_of_a_later_day_than_the_next(found: list[float | None]) -> None:
    days = days_before(found)
    assert [day is None for day in days] == [seconds is None for seconds in found]
    told = [day for day in days if day is not None]
    assert told == sorted(told, reverse=True)
    assert told[-1:] in ([], [0])


@given(st.lists(st.text(max_size=60) | st.sampled_from([HEADER, line("06:14:46.000"), line("1")])))
def test_no_text_breaks_the_reader(texts: list[str]) -> None:
    list(read(iter(texts), Origin("n1", at_ms=AT_MS), ImportTally()))
