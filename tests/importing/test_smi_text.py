"""The text that nvidia-smi prints for people says the same as its CSV."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.importing.conftest import CAPTURES

from gpuwarden_importing import smi_csv
from gpuwarden_importing.detect import format_of
from gpuwarden_importing.model import ImportTally, Origin, UnreadableError
from gpuwarden_importing.smi_text import read_pages, read_query

ALONE = {"ts", "inforom_valid", "compute_capability", "power_watts", "power_instant_watts"}
"""Not in the text, or another value a moment later."""
MOVING = {"sm_clock_mhz", "graphics_clock_mhz", "video_clock_mhz", "memory_clock_mhz", "util_percent",
          "memory_temperature_celsius", "temperature_celsius", "power_violation_seconds_total",
          "clocks_event_reasons", "memory_util_percent", "temperature_margin_celsius", "fan_percent", "encoder_util_percent", "decoder_util_percent"}  # fmt: skip


@pytest.mark.parametrize("mode", ["idle", "load"])
@pytest.mark.parametrize("machine", CAPTURES)
def test_the_text_of_q_has_what_the_csv_has(imported, capture, machine: str, mode: str) -> None:
    text = imported(read_query, capture(machine, mode, "nvidia-smi -q"))
    csv = imported(smi_csv.read, capture(machine, mode, "nvidia-smi --query-gpu"))
    assert not text.tally.skipped
    compared = 0
    for table in ("gpu_samples", "gpu_detail_samples", "gpu_health_samples", "gpus"):
        (said,), one = csv.tables[table], text.tables[table][0]
        for column, value in said.items():
            if column in ALONE or value is None or one.get(column) is None:
                continue
            compared += 1
            if column in MOVING:
                assert type(one[column]) is type(value), column
            else:
                assert one[column] == value, column
    assert compared > 40
    (details,) = text["gpu_detail_samples"]
    assert details["bar1_total_bytes"] > details["bar1_used_bytes"] >= 0
    assert text["gpus"][0]["architecture"] in ("hopper", "ada", "turing")


def test_mig_devices_and_processes_of_q_are_rows(imported, capture) -> None:
    found = imported(read_query, capture("h100-mig", "load", "nvidia-smi -q"))
    parts = {row["mig_instance"] for row in found["gpu_samples"] if row.get("mig_instance")}
    assert parts == {"2/0", "3/0", "9/0", "10/0"}
    process = found["process_samples"][0]
    assert process["mig_instance"] == "2/0" and process["gpu_uuid"].endswith("/2/0")
    assert process["process_name"] == "memhog" and process["gpu_memory_bytes"] > 2**30


@pytest.mark.parametrize("mode", ["idle", "load"])
@pytest.mark.parametrize("machine", CAPTURES)
def test_the_table_has_what_q_has(imported, capture, machine: str, mode: str) -> None:
    table = imported(read_pages, capture(machine, mode, "nvidia-smi"))
    text = imported(read_query, capture(machine, mode, "nvidia-smi -q"))
    assert not table.tally.skipped
    samples, said = table["gpu_samples"][0], text["gpu_samples"][0]
    for column in ("memory_used_bytes", "memory_total_bytes", "pstate", "power_limit_watts"):
        assert samples[column] == said[column], column
    bus = text["gpus"][0]["pci_bus_id"]
    assert (samples["gpu_uuid"], samples["gpu"]) == (f"pci-{bus}@n1", 0)
    assert table["gpus"][0].get("model") in (None, text["gpus"][0]["model"])
    assert table["nodes"][0]["driver_version"] == text["nodes"][0]["driver_version"]
    processes = [
        [(row["pid"], row["process_name"], row["process_type"], row["gpu_memory_bytes"], row["mig_instance"])
         for row in found.tables.get("process_samples", ())]
        for found in (table, text)
    ]  # fmt: skip
    assert processes[0] == processes[1]
    parts = [[r["mig_instance"] for r in f["gpu_samples"][1:]] for f in (table, text)]
    assert parts[0] == parts[1]


def test_tables_one_after_another_are_samples_of_their_times(imported) -> None:
    """As `watch` and `--loop` leave them; the layout before driver 450 has no MIG column."""
    page = """\
{time}
| NVIDIA-SMI 418.87.01    Driver Version: 418.87.01    CUDA Version: 10.1     |
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    3 |
| N/A   34C    P0    38W / 300W |      0MiB / 16130MiB |    {util}%      Default |
|   1  Tesla V100-SXM2...  On   | 00000000:00:1F.0 Off |                  Off |
| ERR!  ERR!   P0    N/A /  N/A |     10MiB / 16130MiB |     ERR!     Default |
| Processes:                                                       GPU Memory |
|    0      4242      C   /usr/bin/python3                              123MiB |
"""
    found = imported(
        read_pages,
        page.format(time="Tue Jul 14 09:00:26 2026", util=5)
        + page.format(time="Tue Jul 14 09:00:27 2026", util=6),
    )
    rows = [
        (r["ts"] % 100_000, r["gpu"], r["util_percent"], r["power_watts"])
        for r in found["gpu_samples"]
    ]
    assert rows == [
        (26000, 0, 5.0, 38.0),
        (26000, 1, None, None),
        (27000, 0, 6.0, 38.0),
        (27000, 1, None, None),
    ]
    assert [r["ecc_uncorrected_volatile_total"] for r in found["gpu_health_samples"]] == [3, 3]
    process = found["process_samples"][0]
    assert (process["pid"], process["process_name"], process["mig_instance"]) == (
        4242,
        "python3",
        None,
    )
    assert not found.tally.skipped


@pytest.mark.parametrize(
    ("header", "driver", "cuda"),
    [
        ("| NVIDIA-SMI 610.12    KMD Version: 610.12    CUDA UMD Version: 13.3     |", "610.12", "13.3"),
        ("| NVIDIA-SMI 700.1     Kernel: 700.1                                       |", None, None),
        ("", None, None),
    ],
)  # fmt: skip
def test_a_table_is_recognised_by_its_shape(
    imported: Any, header: str, driver: str | None, cuda: str | None
) -> None:
    """Whatever words its header has, and without a header."""
    page = f"""\
{header}
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             68W /  700W |       0MiB /  81559MiB |      5%      Default |
"""
    assert format_of(page.splitlines(), Origin()) == "nvidia-smi text"
    found = imported(read_pages, page)
    assert found["gpu_samples"][0]["util_percent"] == 5.0
    node = found.tables.get("nodes", [{}])[0]
    assert (node.get("driver_version"), node.get("cuda_version")) == (driver, cuda)
    assert not found.tally.skipped


def test_lists_links_and_topology_name_the_gpus(imported, capture, data) -> None:
    links = (data / "kernel_log" / "nvlink_status_a100.txt").read_text()
    found = imported(read_pages, links)
    assert len(found["link_samples"]) == 8 * 12 and len(found["gpus"]) == 8
    assert found["link_samples"][0] == {
        "ts": 1_780_000_000_000, "node": "n1", "gpu": 0, "link_type": "nvlink", "link": 0, "active": True,
        "gpu_uuid": "GPU-5269b708-678a-b1a8-60f0-c90406537486", "speed_bytes_per_second": 25e9,
    }  # fmt: skip
    assert found["gpus"][7]["model"] == "NVIDIA A100-SXM4-80GB"
    off = imported(read_pages, links[:88] + "\n         Link 0: <inactive>\n")
    assert [r["active"] for r in off["link_samples"]] == [False]
    topology = capture("h100-80gb", "capabilities", "nvidia-smi topo -m")
    listed = capture("h100-80gb", "capabilities", "nvidia-smi -L")
    (gpu,) = imported(read_pages, listed + topology)["gpus"]
    assert (gpu["numa_node"], gpu["cpu_affinity"]) == (0, "0-19")
    with pytest.raises(UnreadableError, match="put `nvidia-smi -L` before it"):
        imported(read_pages, topology)


@given(st.lists(st.sampled_from(["==============NVSMI LOG==============\n", "GPU 00000000:00:09.0\n", "    ECC Errors\n",
    "        Volatile : 5\n", "    Processes\n", "        Process ID : x\n", "    MIG Device\n", "  MIG Device : 1\n", ":\n",
    "|   0  A  On  | 00000000:00:1E.0 Off |  3 |\n", "| N/A 34C P0 38W / 300W | 0MiB / 1MiB | 5% D |\n", "GPU0\tX\n",
    "|  0  2  0  0  |  26MiB / 40448MiB  |\n", "\tGPU0\tCPU Affinity\n", "Tue Jul 14 09:00:26 2026\n", "é\x00|"]), max_size=25))  # fmt: skip
def test_rubbish_never_raises_anything_but_a_sentence(pieces: list[str]) -> None:
    lines: Any = "".join(pieces).splitlines(keepends=True)
    for reader in (read_query, read_pages):
        try:
            list(reader(iter(lines), Origin(node="n1", at_ms=1), ImportTally()))
        except UnreadableError as error:
            assert "nvidia-smi -L" in str(error)
