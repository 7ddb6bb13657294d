"""Boards of AMD as their files in /sys, laid out and written as the kernel documents them.

Values of MI100, RX 6700 XT and Vega 10 are those that rocm-smi was recorded with on such boards.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path

from gpuwarden.clock import EPOCH, ManualClock
from gpuwarden_agent.collect.amd.gpu import AmdGpuProbe, Card
from gpuwarden_agent.probe import Row

T = 1_784_016_758_000
BRIDGES = ("0000:80:01.1", "0000:81:00.0", "0000:82:00.0")

Files = dict[str, str]

PCI = {
    "vendor": "0x1002",
    "power/runtime_status": "active",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "numa_node": "0",
}

MI100: Files = PCI | {
    "device": "0x738c",
    "numa_node": "1",
    "unique_id": "79ccd55167a2124a",
    "vbios_version": "113-D3431401-101",
    "gpu_busy_percent": "0",
    "mem_busy_percent": "0",
    "mem_info_vram_total": "34342961152",
    "mem_info_vram_used": "6750208",
    "pp_dpm_sclk": "0: 300Mhz *\n1: 495Mhz \n2: 731Mhz \n14: 1472Mhz \n15: 1502Mhz ",
    "pp_dpm_mclk": "0: 1200Mhz *",
    "hwmon/name": "amdgpu",
    "hwmon/temp1_input": "53000",
    "hwmon/temp1_label": "edge",
    "hwmon/temp1_crit": "100000",
    "hwmon/temp1_emergency": "105000",
    "hwmon/temp2_input": "55000",
    "hwmon/temp2_label": "junction",
    "hwmon/temp2_crit": "100000",
    "hwmon/temp2_emergency": "105000",
    "hwmon/temp3_input": "53000",
    "hwmon/temp3_label": "mem",
    "hwmon/temp3_crit": "94000",
    "hwmon/temp3_emergency": "99000",
    "hwmon/power1_average": "36000000",
    "hwmon/power1_cap": "290000000",
    "hwmon/power1_cap_default": "290000000",
    "hwmon/power1_cap_min": "0",
    "hwmon/power1_cap_max": "290000000",
    "hwmon/freq1_input": "300000000",
    "hwmon/freq1_label": "sclk",
    "hwmon/freq2_input": "1200000000",
    "hwmon/freq2_label": "mclk",
    "pcie_replay_count": "0",
    "ras/umc_err_count": "ue: 0\nce: 0",
    "ras/gfx_err_count": "ue: 0\nce: 0",
}

VEGA10: Files = PCI | {
    "device": "0x6861",
    "max_link_speed": "8.0 GT/s PCIe",
    "current_link_speed": "8.0 GT/s PCIe",
    "unique_id": "02150e7d042a1124",
    "vbios_version": "113-D0510100-106",
    "gpu_busy_percent": "0",
    "mem_info_vram_total": "17163091968",
    "mem_info_vram_used": "17776640",
    "pp_dpm_sclk": "0: 852Mhz \n3: 1269Mhz *\n7: 1500Mhz ",
    "pp_dpm_mclk": "0: 167Mhz *\n3: 945Mhz ",
    "hwmon/name": "amdgpu",
    "hwmon/temp1_input": "39000",
    "hwmon/temp1_label": "edge",
    "hwmon/temp1_crit": "85000",
    "hwmon/temp1_emergency": "90000",
    "hwmon/temp2_input": "40000",
    "hwmon/temp2_label": "junction",
    "hwmon/temp3_input": "92000",
    "hwmon/temp3_label": "mem",
    "hwmon/power1_average": "15000000",
    "hwmon/power1_cap": "170000000",
    "hwmon/freq1_input": "1269000000",
    "hwmon/freq2_input": "167000000",
    "hwmon/pwm1": "33",
    "pcie_replay_count": "0",
}

RX6700XT: Files = PCI | {
    "device": "0x73df",
    "numa_node": "-1",
    "unique_id": "",
    "vbios_version": "113-67XA6SSB1-D01",
    "gpu_busy_percent": "0",
    "mem_busy_percent": "0",
    "mem_info_vram_total": "12868124672",
    "mem_info_vram_used": "1622728704",
    "pp_dpm_sclk": "0: 500Mhz *\n1: 1000Mhz \n2: 2855Mhz ",
    "pp_dpm_mclk": "0: 96Mhz *\n1: 456Mhz \n2: 673Mhz \n3: 1000Mhz ",
    "hwmon/name": "amdgpu",
    "hwmon/temp1_input": "45000",
    "hwmon/temp1_label": "edge",
    "hwmon/temp1_crit": "100000",
    "hwmon/temp1_emergency": "105000",
    "hwmon/temp2_input": "47000",
    "hwmon/temp2_label": "junction",
    "hwmon/temp3_input": "46000",
    "hwmon/temp3_label": "mem",
    "hwmon/power1_average": "6000000",
    "hwmon/power1_cap": "211000000",
    "hwmon/power1_cap_default": "211000000",
    "hwmon/power1_cap_max": "230000000",
    "hwmon/freq1_input": "500000000",
    "hwmon/freq2_input": "96000000",
    "pcie_replay_count": "0",
}

MI300X: Files = PCI | {
    "device": "0x74a1",
    "max_link_speed": "32.0 GT/s PCIe",
    "unique_id": "b6f10ab8f7df5e3e",
    "product_name": "AMD Instinct MI300X OAM",
    "product_number": "102-G30211-0C",
    "serial_number": "692251001124",
    "vbios_version": "113-M3000100-102",
    "gpu_busy_percent": "97",
    "mem_busy_percent": "31",
    "mem_info_vram_total": "206141652992",
    "mem_info_vram_used": "150323855360",
    "pp_dpm_sclk": "S: 132Mhz *\n0: 500Mhz \n1: 2100Mhz ",
    "pp_dpm_mclk": "0: 900Mhz \n3: 1300Mhz *",
    "hwmon/name": "amdgpu",
    "hwmon/temp2_input": "71000",
    "hwmon/temp2_label": "junction",
    "hwmon/temp2_crit": "100000",
    "hwmon/temp2_emergency": "110000",
    "hwmon/temp3_input": "58000",
    "hwmon/temp3_label": "mem",
    "hwmon/temp3_crit": "105000",
    "hwmon/power1_input": "724000000",
    "hwmon/power1_cap": "750000000",
    "hwmon/power1_cap_default": "750000000",
    "hwmon/power1_cap_min": "100000000",
    "hwmon/power1_cap_max": "750000000",
    "hwmon/energy1_input": "123456789000",
    "hwmon/freq1_input": "1987000000",
    "hwmon/freq2_input": "1300000000",
    "ras/umc_err_count": "ue: 0\nce: 4\nde: 0",
    "ras/gfx_err_count": "ue: 0\nce: 1",
    "ras/xgmi_wafl_err_count": "ue: 0\nce: 9",
    "ras/gpu_vram_bad_pages": "",
    "pcie_replay_count": "77",
}

APU: Files = PCI | {
    "device": "0x1638",
    "unique_id": "",
    "gpu_busy_percent": "12",
    "mem_info_vram_total": "536870912",
    "mem_info_vram_used": "124588032",
    "hwmon/name": "amdgpu",
    "hwmon/temp1_input": "48000",
    "hwmon/temp1_label": "edge",
    "hwmon/in0_label": "vddgfx",
    "hwmon/in1_input": "900",
    "hwmon/in1_label": "vddnb",
    "hwmon/power1_average": "11000000",
    "hwmon/freq1_input": "400000000",
}

BOARDS = {"MI100": MI100, "Vega 10": VEGA10, "RX 6700 XT": RX6700XT, "MI300X": MI300X, "APU": APU}


def plant(sys: Path, board: Mapping[str, str], bus_id: str = "0000:83:00.0", card: int = 0) -> Path:
    """Lay out a board below `sys` as the kernel does; gives the folder of its PCI device."""
    device = sys.joinpath("devices/pci0000:80", *BRIDGES, bus_id)
    for folder in (device, *device.parents[: len(BRIDGES)]):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "max_link_speed").write_text("32.0 GT/s PCIe\n")
        (folder / "max_link_width").write_text("16\n")
        (folder / "current_link_speed").write_text("32.0 GT/s PCIe\n")
        (folder / "current_link_width").write_text("16\n")
    (device / "config").write_bytes(bytes.fromhex("0210"))
    for name, text in board.items():
        path = device / name.replace("hwmon/", f"hwmon/hwmon{card + 3}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n" if text else "")
    drivers = sys / "bus/pci/drivers/amdgpu"
    drivers.mkdir(parents=True, exist_ok=True)
    (device / "driver").symlink_to(drivers)
    entry = device / "drm" / f"card{card}"
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(device)
    (sys / "class/drm").mkdir(parents=True, exist_ok=True)
    (sys / "class/drm" / entry.name).symlink_to(entry)
    return device


def probe_of(device: Path, clock: ManualClock | None = None, gpu: int = 0) -> AmdGpuProbe:
    """A new probe of the GPU whose PCI device that is, on node n1."""
    return AmdGpuProbe(Card(device, device.name), gpu, clock or ManualClock(EPOCH), "n1")


def read(probe: AmdGpuProbe) -> Row:
    """Its sample."""
    (row,) = probe.read(T)["gpu_samples"]
    return row


def describe(probe: AmdGpuProbe) -> Row:
    """Its row of `gpus`."""
    (row,) = probe.describe()["gpus"]
    return row


def _group(text: str) -> list[tuple[str, type]]:
    """Fields as the kernel's header declares them: "u16 name" or "u16 name[4]"."""
    types = {"u16": ctypes.c_uint16, "u32": ctypes.c_uint32, "u64": ctypes.c_uint64}
    fields = []
    for line in text.strip().splitlines():
        kind, declared = line.split()
        name, _, count = declared.rstrip("]").partition("[")
        fields.append((name, types[kind] * int(count) if count else types[kind]))
    return fields


_HEADER = [
    ("structure_size", ctypes.c_uint16),
    ("format_revision", ctypes.c_uint8),
    ("content_revision", ctypes.c_uint8),
]
_V1_3 = _group("\n".join(f"u16 before{n}" for n in range(10))) + _group("""
    u64 energy_accumulator
    u64 system_clock_counter
    u16 average_clocks[7]
    u16 current_gfxclk
    u16 current_socclk
    u16 current_uclk
    u16 current_vclk0
    u16 current_dclk0
    u16 current_vclk1
    u16 current_dclk1
    u32 throttle_status
    u16 current_fan_speed
    u16 pcie_link_width
    u16 pcie_link_speed
    u16 padding
    u32 gfx_activity_acc
    u32 mem_activity_acc
    u16 temperature_hbm[4]
    u64 firmware_timestamp
    u16 voltages[3]
    u16 padding1
    u64 indep_throttle_status
""")
_SENSORS = _group("""
    u16 temperature_hotspot
    u16 temperature_mem
    u16 temperature_vrsoc
    u16 curr_socket_power
    u16 average_gfx_activity
    u16 average_umc_activity
""")
_ENERGY = _group("u64 energy_accumulator\nu64 system_clock_counter")
_STATUS = _group("u32 throttle_status")
_RESIDENCIES = _group("""
    u32 accumulation_counter
    u32 prochot_residency_acc
    u32 ppt_residency_acc
    u32 socket_thm_residency_acc
    u32 vr_thm_residency_acc
    u32 hbm_thm_residency_acc
""")
_LINKS = _group("""
    u32 gfxclk_lock_status
    u16 pcie_link_width
    u16 pcie_link_speed
    u16 xgmi_link_width
    u16 xgmi_link_speed
    u32 gfx_activity_acc
    u32 mem_activity_acc
    u64 pcie_bandwidth_acc
    u64 pcie_bandwidth_inst
    u64 pcie_l0_to_recov_count_acc
    u64 pcie_replay_count_acc
    u64 pcie_replay_rover_count_acc
""")
_NAKS = _group("u32 pcie_nak_sent_count_acc\nu32 pcie_nak_rcvd_count_acc")
_XGMI = _group("u64 xgmi_read_data_acc[8]\nu64 xgmi_write_data_acc[8]")
_CLOCKS = _group("""
    u64 firmware_timestamp
    u16 current_gfxclk[8]
    u16 current_socclk[4]
    u16 current_vclk0[4]
    u16 current_dclk0[4]
    u16 current_uclk
    u16 last
""")
_VIDEO, _JPEG = _group("u16 vcn_activity[4]"), _group("u16 jpeg_activity[32]")
_STATES = _group("u16 xgmi_link_status[8]\nu16 padding")
_BANDWIDTH = _group("u64 mem_max_bandwidth")
_V1_6 = _ENERGY + _RESIDENCIES + _LINKS + _NAKS + _XGMI
_V1_7 = _SENSORS + _BANDWIDTH + _V1_6 + _STATES + _CLOCKS


def _partitions(size: int) -> list[tuple[str, type]]:
    return [("xcp_stats", ctypes.c_uint64 * (8 * size // 8)), ("recovery", ctypes.c_uint32)]


_METRICS = {
    (1, 3): _V1_3,
    (1, 4): _SENSORS + _VIDEO + _ENERGY + _STATUS + _LINKS + _XGMI + _CLOCKS,
    (1, 5): _SENSORS + _VIDEO + _JPEG + _ENERGY + _STATUS + _LINKS + _NAKS + _XGMI + _CLOCKS,
    (1, 6): _SENSORS + _V1_6 + _CLOCKS + _partitions(168),
    (1, 7): _V1_7 + _partitions(232),
    (1, 8): _V1_7 + _partitions(440),
}
METRICS_BYTES = {(1, 3): 120, (1, 4): 288, (1, 5): 360, (1, 6): 1664}
"""Sizes of the structures, worked out by hand."""


def gpu_metrics(version: tuple[int, int], **values: int | list[int]) -> bytes:
    """The file `gpu_metrics` as the driver fills it: all ones, but for `values`. The layout is made
    by ctypes, which aligns as C compilers do.
    """

    class Structure(ctypes.Structure):
        _fields_ = _HEADER + _METRICS[version]

    size = ctypes.sizeof(Structure)
    made = Structure.from_buffer_copy(b"\xff" * size)
    made.structure_size, made.format_revision, made.content_revision = size, *version
    for name, value in values.items():
        if isinstance(value, list):
            getattr(made, name)[: len(value)] = value
        else:
            setattr(made, name, value)
    return bytes(made)
