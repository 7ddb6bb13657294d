"""Boards of AMD as their files in /sys, laid out and written as the kernel documents them.

Values of MI100, RX 6700 XT and Vega 10 are those that rocm-smi was recorded with on such boards.
"""

from collections.abc import Mapping
from pathlib import Path

from gpuwarden.clock import ManualClock
from gpuwarden_agent.probe import Row
from gpuwarden_agent.probes.amd import AmdGpuProbe, Card

T = 1_784_016_758_000
BRIDGES = ("0000:80:01.1", "0000:81:00.0", "0000:82:00.0")

Files = dict[str, str]

PCI = {
    "vendor": "0x1002",
    "power/runtime_status": "active",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
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
    "ras/umc_err_count": "ue: 0\nce: 0",
    "ras/gfx_err_count": "ue: 0\nce: 0",
}

VEGA10: Files = PCI | {
    "device": "0x6861",
    "max_link_speed": "8.0 GT/s PCIe",
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


def probe_of(device: Path, clock: ManualClock, gpu: int = 0) -> AmdGpuProbe:
    """A new probe of the GPU whose PCI device that is, on node n1."""
    return AmdGpuProbe(Card(device, device.name), gpu, clock, "n1")


def read(probe: AmdGpuProbe) -> Row:
    """Its sample."""
    (row,) = probe.read(T)["gpu_samples"]
    return row


def describe(probe: AmdGpuProbe) -> Row:
    """Its row of `gpus`."""
    (row,) = probe.describe()["gpus"]
    return row
