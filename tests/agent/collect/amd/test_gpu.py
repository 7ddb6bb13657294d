"""AMD GPUs from trees of /sys as the kernel lays them out: rows, inventory, errors, discovery."""

import json
import shutil
from pathlib import Path

import pytest
from tests.agent.collect.amd.boards import (
    APU,
    BOARDS,
    MI100,
    MI300X,
    RX6700XT,
    VEGA10,
    Files,
    T,
    describe,
    gpu_metrics,
    plant,
    probe_of,
    read,
)
from tests.each import each

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.amd.gpu import AmdGpuProbe, find_cards
from gpuwarden_agent.once import read_once
from gpuwarden_agent.queue.rows import impossible_columns

DATA = Path(__file__).parents[5] / "shared" / "data" / "amd"


def test_every_reading_of_an_mi300x_is_in_the_catalogues_unit(tmp_path: Path) -> None:
    assert read(probe_of(plant(tmp_path, MI300X), gpu=5)) == {
        "gpu": 5,
        "gpu_uuid": "AMD-b6f10ab8f7df5e3e",
        "util_percent": 97.0,
        "memory_util_percent": 31.0,
        "memory_total_bytes": 206141652992,
        "memory_used_bytes": 150323855360,
        "power_watts": 724.0,
        "power_instant_watts": 724.0,
        "power_limit_watts": 750.0,
        "energy_joules_total": 123456.789,
        "temperature_celsius": 71.0,
        "memory_temperature_celsius": 58.0,
        "sm_clock_mhz": 1987,
        "memory_clock_mhz": 1300,
    }


def test_the_inventory_of_an_mi300x_is_complete(tmp_path: Path) -> None:
    assert describe(probe_of(plant(tmp_path, MI300X), gpu=5)) == {
        "gpu_uuid": "AMD-b6f10ab8f7df5e3e",
        "gpu": 5,
        "model": "AMD Instinct MI300X OAM",
        "vendor": "amd",
        "kind": "gpu",
        "serial": "692251001124",
        "pci_bus_id": "0000:83:00.0",
        "vbios_version": "113-M3000100-102",
        "memory_total_bytes": 206141652992,
        "power_limit_default_watts": 750.0,
        "power_limit_min_watts": 100.0,
        "power_limit_max_watts": 750.0,
        "temperature_slowdown_celsius": 100.0,
        "temperature_shutdown_celsius": 110.0,
        "sm_clock_max_mhz": 2100,
        "memory_clock_max_mhz": 1300,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "numa_node": 0,
    }


def test_the_core_temperature_is_the_edge_where_there_is_one(tmp_path: Path) -> None:
    board = MI100 | {"hwmon/temp2_input": "80000", "hwmon/temp2_crit": "115000"}
    probe = probe_of(plant(tmp_path, board))
    assert read(probe)["temperature_celsius"] == 53.0
    assert describe(probe)["temperature_slowdown_celsius"] == 100.0


def test_an_edge_that_fails_for_a_moment_is_not_replaced_by_the_junction(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    probe = probe_of(device)
    read(probe)
    (device / "hwmon/hwmon3/temp1_input").write_text("?\n")
    assert "temperature_celsius" not in read(probe)


def test_a_slowdown_above_the_shutdown_is_absent(tmp_path: Path) -> None:
    board = MI100 | {"hwmon/temp1_crit": "118000", "hwmon/temp1_emergency": "99000"}
    row = describe(probe_of(plant(tmp_path, board)))
    assert "temperature_slowdown_celsius" not in row
    assert row["temperature_shutdown_celsius"] == 99.0


def test_a_kernel_without_labels_has_the_sensors_in_order(tmp_path: Path) -> None:
    board = {name: text for name, text in MI100.items() if not name.endswith("_label")}
    row = read(probe_of(plant(tmp_path, board)))
    assert (row["temperature_celsius"], row["memory_temperature_celsius"]) == (53.0, 53.0)


def test_an_apu_gives_neither_the_cpus_power_nor_what_it_lacks(tmp_path: Path) -> None:
    probe = probe_of(plant(tmp_path, APU))
    assert read(probe) == {
        "gpu": 0,
        "gpu_uuid": "AMD-0000:83:00.0@n1",
        "util_percent": 12.0,
        "memory_total_bytes": 536870912,
        "memory_used_bytes": 124588032,
        "temperature_celsius": 48.0,
        "sm_clock_mhz": 400,
    }
    row = describe(probe)
    assert row["model"] == "AMD GPU 0x1638"
    assert not [name for name in row if name.startswith("power_")]


def test_the_second_die_of_a_board_has_no_power_of_its_own(tmp_path: Path) -> None:
    board = MI100 | {"hwmon/power1_average": "0", "hwmon/power1_cap": "0"}
    row = read(probe_of(plant(tmp_path, board)))
    assert not [name for name in row if name.startswith("power_")]


@pytest.mark.skipif(not DATA.is_dir(), reason="no recordings of rocm-smi at ../shared/data/amd")
@pytest.mark.parametrize(
    ("file", "board"),
    [("mi100_rocm602", MI100), ("rx6700xt_rocm430", RX6700XT), ("vega-10-XT", VEGA10)],
)
def test_rows_say_what_rocm_smi_said(
    tmp_path: Path, clock: ManualClock, file: str, board: Files
) -> None:
    said = json.loads((DATA / f"{file}.json").read_text())["card0"]
    bus_id = said["PCI Bus"].lower()
    probe = probe_of(plant(tmp_path, board, bus_id), clock)
    row, gpu = read(probe), describe(probe)
    numbers = {
        "util_percent": "GPU use (%)",
        "memory_util_percent": "GPU memory use (%)",
        "memory_total_bytes": "VRAM Total Memory (B)",
        "memory_used_bytes": "VRAM Total Used Memory (B)",
        "power_watts": "Average Graphics Package Power (W)",
        "power_limit_watts": "Max Graphics Package Power (W)",
        "temperature_celsius": "Temperature (Sensor edge) (C)",
        "memory_temperature_celsius": "Temperature (Sensor memory) (C)",
    }
    expected = {column: float(said[name]) for column, name in numbers.items() if name in said}
    assert {column: row.get(column) for column in numbers if numbers[column] in said} == expected
    assert f"({row['sm_clock_mhz']}Mhz)" == said["sclk clock speed:"]
    assert f"({row['memory_clock_mhz']}Mhz)" == said["mclk clock speed:"]
    (details,) = probe.read(T)["gpu_detail_samples"]
    assert details["pcie_replays_total"] == int(said["PCIe Replay Count"])
    fan = float(said["Fan speed (%)"]) if "Fan speed (%)" in said else None
    assert details.get("fan_percent") == pytest.approx(fan, abs=0.5)
    now = {3: "8.0GT/s", 4: "16.0GT/s"}[details["pcie_generation"]]  # type: ignore[index]
    assert f"({now} x{details['pcie_width']})" in said["pcie clock level"]
    assert gpu["vbios_version"] == said["VBIOS version"]
    assert gpu["pci_bus_id"] == bus_id
    generation = {3: "8.0GT/s", 4: "16.0GT/s"}[gpu["pcie_generation_max"]]  # type: ignore[index]
    assert f"{generation} x{gpu['pcie_width_max']}" in said["pcie clock level"]
    if said["Unique ID"] == "N/A":
        assert row["gpu_uuid"] == f"AMD-{bus_id}@n1"
    else:
        assert row["gpu_uuid"] == f"AMD-{int(said['Unique ID'], 16):016x}"
    device_id = said.get("Device ID", said.get("GPU ID"))
    assert gpu["model"] in ("AMD Instinct MI100", f"AMD GPU {device_id}")
    affinity = int(said["(Topology) Numa Affinity"])
    assert gpu.get("numa_node", 2**32 - 1) == affinity


FEEDS = {
    "gpu_busy_percent": {"util_percent"},
    "mem_busy_percent": {"memory_util_percent"},
    "mem_info_vram_total": {"memory_total_bytes", "memory_used_bytes"},
    "mem_info_vram_used": {"memory_used_bytes"},
    "vbios_version": {"vbios_version"},
    "serial_number": {"serial"},
    "pp_dpm_sclk": {"sm_clock_max_mhz"},
    "pp_dpm_mclk": {"memory_clock_max_mhz"},
    "max_link_speed": {"pcie_generation_max"},
    "max_link_width": {"pcie_width_max"},
    "hwmon/temp3_input": {"memory_temperature_celsius"},
    "hwmon/power1_average": {"power_watts"},
    "hwmon/power1_input": {"power_watts", "power_instant_watts"},
    "hwmon/power1_cap": {"power_limit_watts"},
    "hwmon/power1_cap_default": {"power_limit_default_watts"},
    "hwmon/power1_cap_max": {"power_limit_max_watts"},
    "hwmon/energy1_input": {"energy_joules_total"},
    "hwmon/freq1_input": {"sm_clock_mhz"},
    "hwmon/freq2_input": {"memory_clock_mhz"},
}
"""File to the columns that need it, whatever the board. Other files only help: labels, limits of
one sensor or another."""

CHANGED_WITHOUT = {
    "unique_id": {"gpu_uuid"},
    "product_name": {"model"},
    "device": {"model"},
    "hwmon/in1_label": {"power_watts"},  # nothing else says that it is an APU
    "hwmon/temp1_input": {
        "temperature_celsius",
        "temperature_slowdown_celsius",
        "temperature_shutdown_celsius",
    },
}


@each("name", BOARDS)
def test_a_file_that_is_missing_takes_no_other_reading_with_it(tmp_path: Path, name: str) -> None:
    device = plant(tmp_path / name, BOARDS[name])
    whole = probe_of(device)
    before = read(whole) | describe(whole)
    for file in BOARDS[name].keys() - {"hwmon/name"}:
        path = device / file.replace("hwmon/", "hwmon/hwmon3/")
        path.rename(tmp_path / "away")
        less = probe_of(device)
        after = read(less) | describe(less)
        gone = before.keys() - after.keys()
        if file in FEEDS:
            assert gone == FEEDS[file] & before.keys(), file
        else:
            temperatures = {name for name in before if name.startswith("temperature_")}
            assert gone <= {"numa_node", *temperatures, "power_limit_min_watts"}, file
        changed = {column for column in after if before.get(column) != after[column]}
        assert changed <= CHANGED_WITHOUT.get(file, set()), file
        assert not less.failed
        (tmp_path / "away").rename(path)


def test_without_its_hwmon_there_is_still_what_the_driver_counts(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    shutil.rmtree(device / "hwmon")
    columns = {"util_percent", "memory_util_percent", "memory_total_bytes", "memory_used_bytes"}
    assert read(probe_of(device)).keys() == columns | {"gpu", "gpu_uuid"}


def test_the_slot_and_the_bridges_bound_the_link(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    (device.parents[2] / "max_link_speed").write_text("8.0 GT/s PCIe\n")
    (device.parents[2] / "max_link_width").write_text("8\n")
    (device.parents[1] / "max_link_width").write_text("255\n")
    row = describe(probe_of(device))
    assert (row["pcie_generation_max"], row["pcie_width_max"]) == (3, 8)


def test_cards_are_amds_with_the_driver_in_the_order_of_the_bus(tmp_path: Path) -> None:
    plant(tmp_path, MI100, "0000:c3:00.0", card=0)
    plant(tmp_path, MI100, "0000:1e:00.0", card=1)
    plant(tmp_path, MI300X | {"power/runtime_status": "suspended"}, "0000:83:00.0", card=10)
    plant(tmp_path, MI100 | {"vendor": "0x10de"}, "0000:84:00.0", card=3)
    radeon = plant(tmp_path, APU, "0000:85:00.0", card=4)
    (radeon / "driver").unlink()
    (radeon / "driver").symlink_to(tmp_path / "bus/pci/drivers/radeon")
    partition = tmp_path / "devices/platform/amdgpu_xcp_0"
    partition.mkdir(parents=True)
    (tmp_path / "class/drm/card5").mkdir()
    (tmp_path / "class/drm/card5/device").symlink_to(partition)
    connector = tmp_path / "class/drm/card0-DP-1"
    connector.mkdir()
    (connector / "device").symlink_to(tmp_path / "class/drm/card0")
    (tmp_path / "class/drm/renderD128").mkdir()
    (tmp_path / "class/drm/version").write_text("drm 1.1.0\n")
    cards = find_cards(tmp_path)
    assert [card.pci_bus_id for card in cards] == ["0000:1e:00.0", "0000:83:00.0", "0000:c3:00.0"]


def test_a_whole_reading_passes_the_agents_own_check(tmp_path: Path, clock: ManualClock) -> None:
    probes = []
    for nth, board in enumerate(BOARDS.values()):
        plant(tmp_path, board, f"0000:8{nth}:00.0", card=nth)
    for nth, card in enumerate(find_cards(tmp_path)):
        probes.append(AmdGpuProbe(card, nth, clock, "n1"))
    once = read_once(probes, clock, node="n1", between_s=0)
    assert once.problems == []
    assert len(once.tables["gpus"]) == len(once.tables["gpu_samples"]) == len(BOARDS)
    for table, rows in once.tables.items():
        for row in rows:
            assert impossible_columns(table, row) == ()


MI300X_METRICS = gpu_metrics(
    (1, 7),
    average_gfx_activity=96,
    energy_accumulator=1000 << 16,
    accumulation_counter=1000,
    ppt_residency_acc=10,
    socket_thm_residency_acc=0,
    xgmi_link_width=16,
    xgmi_link_speed=32,
    xgmi_link_status=[1, 1, 0, 2],
    xgmi_read_data_acc=[4, 8, 0],
    xgmi_write_data_acc=[2, 6, 0],
    pcie_replay_count_acc=5,
    pcie_replay_rover_count_acc=1,
    pcie_l0_to_recov_count_acc=2,
    pcie_nak_sent_count_acc=3,
    pcie_nak_rcvd_count_acc=4,
    current_vclk0=[29, 1400, 29, 29],
)


def test_details_and_links_of_an_mi300x_are_complete(tmp_path: Path) -> None:
    device = plant(tmp_path, MI300X)
    (device / "gpu_metrics").write_bytes(MI300X_METRICS)
    (device / "current_link_speed").write_text("32.0 GT/s PCIe\n")
    reading = probe_of(device, gpu=5).read(T)
    identity = {"gpu": 5, "gpu_uuid": "AMD-b6f10ab8f7df5e3e"}
    assert reading["gpu_detail_samples"] == [
        identity
        | {
            "pcie_generation": 5,
            "pcie_width": 16,
            "pcie_replays_total": 5,
            "pcie_replay_rollovers_total": 1,
            "pcie_l0_to_recovery_total": 2,
            "pcie_naks_sent_total": 3,
            "pcie_naks_received_total": 4,
            "video_clock_mhz": 1400,
            "graphics_clock_mhz": 1987,
        }
    ]
    assert [
        (row["link"], row["active"], row["tx_bytes_total"], row["rx_bytes_total"])
        for row in reading["link_samples"]
    ] == [(0, True, 2048, 4096), (1, True, 6144, 8192), (2, False, 0, 0)]
    more = {"link_type": "xgmi", "remote_type": "gpu", "speed_bytes_per_second": 64e9}
    assert (identity | more).items() <= reading["link_samples"][0].items()


def test_an_mi300x_says_how_long_it_was_held_down(tmp_path: Path, clock: ManualClock) -> None:
    board = {name: text for name, text in MI300X.items() if name != "hwmon/energy1_input"}
    device = plant(tmp_path, board)
    (device / "gpu_metrics").write_bytes(MI300X_METRICS)
    probe = probe_of(device, clock)
    row = read(probe)
    assert row["energy_joules_total"] == 1000.0
    assert row["power_violation_seconds_total"] == 0.0
    assert "clocks_event_reasons" not in row
    clock.advance(1)
    later = {"accumulation_counter": 2000, "ppt_residency_acc": 260, "socket_thm_residency_acc": 0}
    (device / "gpu_metrics").write_bytes(gpu_metrics((1, 7), **later))
    row = read(probe)
    assert (row["power_violation_seconds_total"], row["clocks_event_reasons"]) == (0.25, 0x4)
    assert row["thermal_violation_seconds_total"] == 0.0


def test_a_radeon_has_a_fan_and_the_reason_of_its_clocks(tmp_path: Path) -> None:
    more = {
        "hwmon/pwm1": "51",
        "hwmon/in0_input": "856",
        "mem_info_vis_vram_total": "268435456",
        "mem_info_vis_vram_used": "17776640",
    }
    device = plant(tmp_path, RX6700XT | more)
    (device / "gpu_metrics").write_bytes(
        gpu_metrics((1, 3), indep_throttle_status=1 << 36, current_vclk0=500)
    )
    reading = probe_of(device).read(T)
    assert reading["gpu_samples"][0]["clocks_event_reasons"] == 0x20
    (row,) = reading["gpu_detail_samples"]
    assert (row["fan_percent"], row["video_clock_mhz"]) == (20.0, 500)
    assert row["voltage_volts"] == 0.856
    assert (row["bar1_total_bytes"], row["bar1_used_bytes"]) == (268_435_456, 17_776_640)
    assert (row["pcie_replays_total"], row["pcie_generation"]) == (0, 4)
    assert reading["link_samples"] == []


def test_a_slot_that_gave_up_lanes_shows_in_the_details(tmp_path: Path) -> None:
    device = plant(tmp_path, MI100)
    (device.parents[1] / "current_link_width").write_text("4\n")
    (device / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    (row,) = probe_of(device).read(T)["gpu_detail_samples"]
    assert (row["pcie_generation"], row["pcie_width"]) == (1, 4)


def test_metrics_that_are_cut_off_are_counted_and_take_nothing_with_them(tmp_path: Path) -> None:
    device = plant(tmp_path, MI300X)
    (device / "gpu_metrics").write_bytes(MI300X_METRICS[:90])
    probe = probe_of(device)
    assert read(probe)["power_watts"] == 724.0
    assert sum(probe.failed.values()) == 1
    (device / "gpu_metrics").write_bytes(b"")
    read(probe)
    assert sum(probe.failed.values()) == 1


def test_every_table_that_is_due_has_its_key(tmp_path: Path) -> None:
    probe = probe_of(plant(tmp_path, RX6700XT))
    assert probe.read(T).keys() == probe.tables.keys()
    assert probe.read(T, {"gpu_samples"}).keys() == {"gpu_samples"}
    assert probe.read(T, {"link_samples"}) == {"link_samples": []}
