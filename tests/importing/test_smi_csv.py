"""`nvidia-smi --query-gpu` logs: any order, any units, several GPUs, with --loop."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_importing.model import ImportTally, Origin, UnreadableError
from gpuwarden_importing.smi_csv import read
from gpuwarden_importing.smi_fields import CSV_FIELDS

HEADER = "timestamp, index, uuid, utilization.gpu [%], memory.used [MiB], power.draw [W]\n"
LINE = "2026/07/14 09:00:44.579, 0, GPU-1, 97 %, 11125 MiB, 433.78 W\n"
OTHER = "2026/07/14 09:00:44.582, 1, GPU-2, [N/A], 3 MiB, [Not Supported]\n"


def test_each_line_is_a_row_in_the_catalogues_units(imported) -> None:
    found = imported(read, HEADER + LINE + OTHER)
    assert found["gpu_samples"] == [
        {"ts": 1784019644579, "node": "n1", "gpu": 0, "gpu_uuid": "GPU-1", "util_percent": 97.0,
         "memory_used_bytes": 11125 * 2**20, "power_watts": 433.78},
        {"ts": 1784019644582, "node": "n1", "gpu": 1, "gpu_uuid": "GPU-2", "util_percent": None,
         "memory_used_bytes": 3 * 2**20, "power_watts": None},
    ]  # fmt: skip
    assert found.tally.skipped == {}


def test_a_header_may_come_again_and_change(imported) -> None:
    more = "timestamp, uuid, temperature.gpu\n2026/07/14 09:00:45.000, GPU-1, 53\n"
    found = imported(read, HEADER + LINE + HEADER + OTHER + "\n" + more)
    assert [row.get("temperature_celsius") for row in found["gpu_samples"]] == [None, None, 53.0]
    assert found.tally.skipped == {}


def test_lines_that_are_none_are_counted_with_the_first_line(imported) -> None:
    text = "Unable to say\n" + HEADER + LINE + "2026/07/14 09:0\n" + "killed, early\n" + OTHER
    found = imported(read, text)
    assert len(found["gpu_samples"]) == 2
    said = {reason: (s.count, s.line) for reason, s in found.tally.skipped.items()}
    assert said == {
        "text before the first header": (1, 1),
        "other text": (1, 4),
        "not the 6 cells of the header": (1, 5),
    }


def test_a_value_that_is_not_understood_is_absent_and_counted(imported) -> None:
    found = imported(read, HEADER + LINE + LINE.replace("97 %", "97 bananas"))
    assert [row["util_percent"] for row in found["gpu_samples"]] == [97.0, None]
    assert found.tally.skipped["utilization.gpu has an unknown unit"].line == 3


def test_a_line_without_a_time_is_left_out(imported) -> None:
    found = imported(read, HEADER + LINE + LINE.replace("2026/07/14", "2026/17/44"))
    assert len(found["gpu_samples"]) == 1
    assert found.tally.skipped["timestamp is not a time"].line == 3


def test_without_a_header_the_fields_must_be_named(imported) -> None:
    with pytest.raises(UnreadableError, match="--fields"):
        imported(read, LINE)
    fields = ("timestamp", "index", "uuid", "utilization.gpu", "memory.used", "power.draw")
    row = imported(read, LINE.replace(" MiB", "").replace(" W", ""), fields=fields)["gpu_samples"][
        0
    ]
    assert (row["memory_used_bytes"], row["power_watts"]) == (11125 * 2**20, 433.78)


def test_units_in_the_header_hold_for_values_without(imported) -> None:
    text = "timestamp, uuid, power.draw [mW]\n2026/07/14 09:00:44.579, GPU-1, 433780\n"
    assert imported(read, text)["gpu_samples"][0]["power_watts"] == 433.78


def test_a_gpu_with_instant_power_only_has_that_as_its_power(imported) -> None:
    text = """\
timestamp, uuid, power.draw [W], power.draw.average [W], power.draw.instant [W]
2026/07/14 09:00:44.579, GPU-pro, [N/A], [N/A], 81.50 W
2026/07/14 09:00:44.579, GPU-h100, 629.45 W, 629.45 W, 588.39 W
2026/07/14 09:00:45.579, GPU-pro, [N/A], [N/A], 82.00 W
2026/07/14 09:00:45.579, GPU-h100, [Unknown Error], [Unknown Error], 590.00 W
"""
    found = imported(read, text)
    assert [
        (row["gpu_uuid"], row["power_watts"], row["power_instant_watts"])
        for row in found["gpu_samples"]
    ] == [
        ("GPU-pro", 81.5, 81.5),
        ("GPU-h100", 629.45, 588.39),
        ("GPU-pro", 82.0, 82.0),
        ("GPU-h100", None, 590.0),
    ]
    note = "power_watts is power.draw.instant where there is no average"
    assert note in found.tally.notes
    other = imported(read, "\n".join(text.splitlines()[:1] + text.splitlines()[2:3]))
    assert note not in other.tally.notes


def test_a_file_saved_by_a_spreadsheet_is_read(imported) -> None:
    text = 'timestamp;uuid;name;power.draw [W]\n"2026-07-14 09:00:44";"GPU-1";"A, B";"433,78 W"\n'
    found = imported(read, text)
    assert found["gpu_samples"][0]["power_watts"] == 433.78
    assert found["gpus"][0]["model"] == "A, B"


def test_deprecated_names_are_the_new_ones(imported) -> None:
    text = (
        "timestamp, gpu_uuid, clocks.sm, clocks_throttle_reasons.active, remapped_rows.dbe\n"
        "2026/07/14 09:00:44.579, GPU-1, 1980 MHz, 0x0000000000000040, 2\n"
    )
    found = imported(read, text)
    assert found["gpu_samples"][0]["sm_clock_mhz"] == 1980
    assert found["gpu_samples"][0]["clocks_event_reasons"] == 0x40
    assert found["gpu_health_samples"][0]["remapped_rows_uncorrected_total"] == 2


def test_single_reasons_become_the_mask(imported) -> None:
    text = (
        "timestamp, uuid, clocks_event_reasons.gpu_idle, clocks_event_reasons.sw_power_cap,"
        " clocks_event_reasons.hw_thermal_slowdown\n"
        "2026/07/14 09:00:44.579, GPU-1, Not Active, Active, Active\n"
        "2026/07/14 09:00:45.579, GPU-1, Not Active, Not Active, Not Active\n"
        "2026/07/14 09:00:46.579, GPU-1, [N/A], [N/A], [N/A]\n"
    )
    found = imported(read, text)
    assert [r["clocks_event_reasons"] for r in found["gpu_samples"]] == [0x44, 0, None]
    assert any("was not asked for: applications_clocks" in note for note in found.tally.notes)


def test_the_limit_in_force_counts_before_the_one_that_was_set(imported) -> None:
    text = (
        "timestamp, uuid, power.limit [W], enforced.power.limit [W]\n"
        "2026/07/14 09:00:44.579, GPU-1, 700.00 W, 500.00 W\n"
        "2026/07/14 09:00:45.579, GPU-1, 700.00 W, [N/A]\n"
    )
    assert [r["power_limit_watts"] for r in imported(read, text)["gpu_samples"]] == [500.0, 700.0]


@pytest.mark.parametrize(
    ("fields", "values", "uuid"),
    [("pci.bus_id, index", "00000000:3B:00.0, 2", "pci-0000:3b:00.0@n1"),
     ("index, name", "2, X", "gpu-2@n1"), ("name, driver_version", "X, 1", "gpu-0@n1")],
)  # fmt: skip
def test_a_gpu_without_uuid_is_named_by_its_place_and_said(imported, fields, values, uuid) -> None:
    text = f"timestamp, {fields}, power.draw\n2026/07/14 09:00:44.579, {values}, 5 W\n"
    found = imported(read, text)
    assert found["gpu_samples"][0]["gpu_uuid"] == uuid
    assert any(note.startswith("no uuid") for note in found.tally.notes)


def test_a_gpu_that_is_lost_keeps_its_identity_and_a_line_that_names_none_is_left_out(
    imported,
) -> None:
    text = (
        "timestamp, pci.bus_id, index, uuid, temperature.gpu\n"
        "2026/07/14 09:00:44.579, 00000000:3B:00.0, 2, GPU-1, 50\n"
        "2026/07/14 09:00:44.579, 00000000:5B:00.0, 3, GPU-2, 40\n"
        "2026/07/14 09:00:45.579, 00000000:3B:00.0, [GPU is lost], [GPU is lost], 51\n"
        "2026/07/14 09:00:45.579, [Unknown Error], 3, [Unknown Error], 41\n"
        "2026/07/14 09:00:46.579, 00000000:7B:00.0, 4, [Unknown Error], 42\n"
        "2026/07/14 09:00:47.579, [Unknown Error], [Unknown Error], [Unknown Error], 43\n"
    )
    found = imported(read, text)
    assert [(r["gpu_uuid"], r["temperature_celsius"]) for r in found["gpu_samples"]] == [
        ("GPU-1", 50),
        ("GPU-2", 40),
        ("GPU-1", 51),
        ("GPU-2", 41),
        ("pci-0000:7b:00.0@n1", 42),
    ]
    assert {r["gpu_uuid"] for r in found["gpus"]} == {"GPU-1", "GPU-2", "pci-0000:7b:00.0@n1"}
    assert found.tally.skipped["no GPU is named"].line == 7
    assert any(note.startswith("some lines have no uuid") for note in found.tally.notes)


def test_processes_are_named_without_arguments(imported) -> None:
    text = (
        "timestamp, gpu_name, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "2026/07/14 09:00:44.579, NVIDIA L40S, GPU-1, 20037, /usr/bin/ffmpeg -i x, 538 MiB\n"
    )
    (row,) = imported(read, text)["process_samples"]
    assert (row["pid"], row["process_name"], row["gpu_memory_bytes"]) == (
        20037,
        "ffmpeg",
        538 * 2**20,
    )


def test_a_query_without_a_table_is_counted(imported) -> None:
    text = HEADER + LINE + "timestamp, gpu_uuid, pid\n2026/07/14 09:00:44, GPU-1, 5\n"
    found = imported(read, text)
    assert found.tally.skipped["lines of a query without a table"].count == 1


def test_a_capture_is_read_as_its_text_says(imported, data) -> None:
    path = data / "captures" / "linux-x86_64__nvidia-h100-mig__590.48.01.txt"
    idle, load = imported(read, path.read_text())["gpu_samples"]
    assert (idle["power_watts"], load["power_watts"]) == (71.15, 433.78)
    assert idle["util_percent"] is None, "no utilization with MIG"
    assert load["memory_used_bytes"] == 11125 * 2**20


MADE = {
    "percent": st.integers(0, 100).map(lambda v: (f"{v} %", f"{v}")),
    "bytes": st.integers(0, 200_000).map(lambda v: (f"{v} MiB", f"{v}")),
    "watts": st.integers(0, 70_000).map(lambda v: (f"{v / 100:.2f} W", f"{v / 100:.2f}")),
    "mhz": st.integers(0, 3000).map(lambda v: (f"{v} MHz", f"{v}")),
    "celsius": st.integers(0, 120).map(lambda v: (f"{v}", f"{v}")),
}
NAMES = sorted(
    n for n, f in CSV_FIELDS.items() if f.quantity in MADE and f.table != "gpus" and not f.rank
)


@settings(max_examples=60)
@given(st.data())
def test_order_and_units_change_nothing(data) -> None:
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=8, unique=True))
    cells = {name: data.draw(MADE[CSV_FIELDS[name].quantity]) for name in names}
    fixed = {"timestamp": ("2026/07/14 09:00:44.579",) * 2, "uuid": ("GPU-1",) * 2}
    every = {**fixed, **cells}
    first, second = data.draw(st.permutations([*every])), data.draw(st.permutations([*every]))

    def tables(order, which):
        text = ", ".join(order) + "\n" + ", ".join(every[n][which] for n in order) + "\n"
        origin, tally = Origin(node="n1"), ImportTally()
        rows = list(read(iter(text.splitlines(keepends=True)), origin, tally))
        assert tally.skipped == {}
        return {(table, name): value for table, row in rows for name, value in row.items()}

    assert tables(first, 0) == tables(second, 1)


@settings(max_examples=150)
@given(st.text('ti,mestap \n\r\t"[]%MB0123456789/:.;GPU-é\x00', max_size=200), st.booleans())
def test_rubbish_in_csv_is_unreadable_only_without_a_header(text, has_header) -> None:
    whole = HEADER + text if has_header else text
    try:
        list(read(iter(whole.splitlines(keepends=True)), Origin(node="n1", at_ms=1), ImportTally()))
    except UnreadableError:
        assert not has_header


def test_gpus_without_any_identity_stay_apart(imported) -> None:
    text = "timestamp, utilization.gpu [%]\n" + "".join(
        f"2026/07/14 09:00:{second:02}.{100 + gpu}, {10 * gpu + second} %\n"
        for second in range(3)
        for gpu in range(4)
    )
    found = imported(read, text)
    assert [(r["gpu"], r["gpu_uuid"], r["util_percent"]) for r in found["gpu_samples"]][:5] == [
        (0, "gpu-0@n1", 0.0), (1, "gpu-1@n1", 10.0), (2, "gpu-2@n1", 20.0), (3, "gpu-3@n1", 30.0),
        (0, "gpu-0@n1", 1.0),
    ]  # fmt: skip
    assert len(found["gpus"]) == 4
    assert any("each 4 lines are read as so many GPUs" in note for note in found.tally.notes)
    once = imported(read, "utilization.gpu [%]\n5 %\n6 %\n")
    assert [r["gpu_uuid"] for r in once["gpu_samples"]] == ["gpu-0@n1", "gpu-1@n1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("timestamp,gpu,util\n2026/07/14 09:00:44,0,5\n", "none of its columns (timestamp, gpu, util)"),
        ("timestamp,name,temp\n2026/07/14 09:00:44,A100,5\n", "with --fields as in --query-gpu"),
        ("timestamp,index,load\n2026/07/14 09:00:44,0,5\n", "none of its columns"),
        ("pid, process_name, used_gpu_memory [MiB]\n7, a, 5 MiB\n", "ask --query-compute-apps for gpu_uuid"),
        ("utilization.gpu [%]\n" + "5 %\n" * 65, "ask --query-gpu for uuid too"),
    ],
)  # fmt: skip
def test_a_file_that_would_make_gpus_that_are_none_is_refused(imported, text, why) -> None:
    with pytest.raises(UnreadableError, match=re.escape(why)):
        imported(read, text)


def test_iso_times_with_a_comma_lose_no_line(imported) -> None:
    text = (
        "timestamp,index,utilization.gpu\n"
        + "2026-07-14T09:00:44,579,0,5\n2026-07-14T09:00:45,579,0,6\n"
    )
    found = imported(read, text)
    assert [(r["ts"], r["util_percent"]) for r in found["gpu_samples"]] == [
        (1784019644579, 5.0),
        (1784019645579, 6.0),
    ]
    assert not found.tally.skipped


def test_accounted_processes_and_retired_pages_are_taken(imported) -> None:
    apps = "timestamp, gpu_name, gpu_uuid, pid, gpu_utilization [%], mem_utilization [%], max_memory_usage [MiB], time [ms]\n"
    found = imported(
        read, apps + "2026/07/14 09:00:44, H100, GPU-1, 77, 56 %, 4 %, 100 MiB, 5500 ms\n"
    )
    (row,) = found["process_samples"]
    assert (row["pid"], row["sm_util_percent"], row["gpu_memory_bytes"]) == (77, 56.0, 100 * 2**20)
    assert found.tally.unmapped == {"mem_utilization": 1, "time": 1}
    assert any("whole lives" in note for note in found.tally.notes)
    pages = "timestamp, gpu_uuid, retired_pages.address, retired_pages.cause\n"
    said = [(1, "GPU-1", "0x1", "Single Bit ECC"), (1, "GPU-1", "0x2", "Double Bit ECC"),
            (1, "GPU-2", "[N/A]", "Double Bit ECC"), (9, "GPU-1", "0x1", "Single Bit ECC"),
            (9, "GPU-1", "0x3", "Double Bit ECC")]  # fmt: skip
    text = pages + "".join(f"2026/07/14 09:00:0{s}, {g}, {a}, {c}\n" for s, g, a, c in said)
    assert imported(read, text)["gpu_health_samples"] == [
        {"ts": 1784019609000, "node": "n1", "gpu": None, "gpu_uuid": "GPU-1",
         "retired_pages_corrected_total": 1, "retired_pages_uncorrected_total": 2},
    ]  # fmt: skip
