"""Decodes the binary file `gpu_metrics` of the amdgpu driver, and makes rows of its xGMI links.

Names and layouts are those of drivers/gpu/drm/amd/include/kgd_pp_interface.h, versions 1.3 (MI100,
MI200, Radeon) and 1.4 to 1.8 (MI300 and later), with the machine's own alignment. Older versions
lack the values that are read here; versions 2 and 3 belong to APUs. A value of all ones is absent.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from gpuwarden_agent.probe import Row

Metrics = Mapping[str, int | Sequence[int | None]]
"""Known values by name; absent ones of a list are None."""

XGMI_LINKS = 8
KIB = 1024
GIGABIT_BYTES = 1e9 / 8
IS_ACTIVE = {0: False, 1: True}
"""enum amdgpu_xgmi_link_status; 2: unknown."""
_HEADER = struct.Struct("=HBB")
NEWEST = (1, 8)
_OF_APUS = frozenset({2, 3})
_SIZES = {"H": 2, "I": 4, "Q": 8}

_ASKED = """
    average_gfx_activity average_umc_activity energy_accumulator current_vclk0
    indep_throttle_status accumulation_counter prochot_residency_acc ppt_residency_acc
    socket_thm_residency_acc vr_thm_residency_acc hbm_thm_residency_acc
    xgmi_link_width xgmi_link_speed xgmi_read_data_acc xgmi_write_data_acc xgmi_link_status
    pcie_l0_to_recov_count_acc pcie_replay_count_acc pcie_replay_rover_count_acc
    pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc
"""
PARTITIONS_MAX = 8
BUSY_OF_PARTITION = "xcp_gfx_busy_{}"
"""Name of the utilization of the compute dies of a partition."""
ASKED = frozenset(_ASKED.split()) | {BUSY_OF_PARTITION.format(n) for n in range(PARTITIONS_MAX)}
"""Names whose values are given: the file is read every second, and most of it elsewhere."""

# "_energy_accumulator" of version 1.3 is another value: its unit depends on the chip.
_V1_3 = """
    H temperature_edge  H temperature_hotspot  H temperature_mem  H temperature_vrgfx
    H temperature_vrsoc  H temperature_vrmem
    H average_gfx_activity  H average_umc_activity  H average_mm_activity
    H average_socket_power  Q _energy_accumulator  Q system_clock_counter
    H average_gfxclk_frequency  H average_socclk_frequency  H average_uclk_frequency
    H average_vclk0_frequency  H average_dclk0_frequency
    H average_vclk1_frequency  H average_dclk1_frequency
    H current_gfxclk  H current_socclk  H current_uclk  H current_vclk0  H current_dclk0
    H current_vclk1  H current_dclk1
    I _throttle_status  H current_fan_speed  H pcie_link_width  H pcie_link_speed  H _padding
    I gfx_activity_acc  I mem_activity_acc  4H temperature_hbm  Q firmware_timestamp
    H voltage_soc  H voltage_gfx  H voltage_mem  H _padding1  Q indep_throttle_status
"""
_SENSORS = """
    H temperature_hotspot  H temperature_mem  H temperature_vrsoc  H curr_socket_power
    H average_gfx_activity  H average_umc_activity
"""
_ENERGY = "Q energy_accumulator  Q system_clock_counter"
_RESIDENCIES = """
    I accumulation_counter  I prochot_residency_acc  I ppt_residency_acc
    I socket_thm_residency_acc  I vr_thm_residency_acc  I hbm_thm_residency_acc
"""
_LINKS = """
    I gfxclk_lock_status  H pcie_link_width  H pcie_link_speed  H xgmi_link_width  H xgmi_link_speed
    I gfx_activity_acc  I mem_activity_acc  Q pcie_bandwidth_acc  Q pcie_bandwidth_inst
    Q pcie_l0_to_recov_count_acc  Q pcie_replay_count_acc  Q pcie_replay_rover_count_acc
"""
_NAKS = "I pcie_nak_sent_count_acc  I pcie_nak_rcvd_count_acc"
_XGMI = "8Q xgmi_read_data_acc  8Q xgmi_write_data_acc"
_CLOCKS = """
    Q firmware_timestamp  8H current_gfxclk  4H current_socclk  4H current_vclk0  4H current_dclk0
    H current_uclk
"""
_VIDEO = "4H vcn_activity"
_V1_6 = (_ENERGY, _RESIDENCIES, _LINKS, _NAKS, _XGMI)
_V1_7 = (_SENSORS, "Q mem_max_bandwidth", *_V1_6, "8H xgmi_link_status  H _padding", _CLOCKS)


def _partitions(rest: int) -> str:
    """What follows the clocks; `rest`: bytes of a partition after the utilization of its compute dies."""
    return "H num_partition" + "".join(
        f"  0Q _align  8I {BUSY_OF_PARTITION.format(n)}  {rest}x _rest"
        for n in range(PARTITIONS_MAX)
    )


_LAYOUTS: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 3): (_V1_3,),
    (1, 4): (_SENSORS, _VIDEO, _ENERGY, "I _throttle_status", _LINKS, _XGMI, _CLOCKS),
    (1, 5): (
        *(_SENSORS, _VIDEO, "32H jpeg_activity", _ENERGY, "I _throttle_status"),
        *(_LINKS, _NAKS, _XGMI, _CLOCKS),
    ),
    (1, 6): (_SENSORS, *_V1_6, _CLOCKS, _partitions(136)),
    (1, 7): (*_V1_7, _partitions(200)),
    (1, 8): (*_V1_7, _partitions(408)),
}
"""Groups of fields by version; what follows them is not read."""


def parse_gpu_metrics(data: bytes) -> Metrics:
    """The values of the file; empty for a version without a layout here. Raises ValueError where
    the file is not as long as it says, or as its version asks for.
    """
    found = version(data)
    if found not in _LAYOUTS:
        return {}
    body, fields = _layout(found)
    size = _HEADER.unpack_from(data)[0]
    if size > len(data) or size < body.size:
        raise ValueError(f"version {found[0]}.{found[1]} in {size} of {len(data)} bytes")
    words = body.unpack_from(data)
    values: dict[str, int | Sequence[int | None]] = {}
    for field in fields:
        if field.count is None:
            if words[field.at] != field.absent:
                values[field.name] = words[field.at]
            continue
        several = words[field.at : field.at + field.count]
        given = [None if word == field.absent else word for word in several]
        if any(word is not None for word in given):
            values[field.name] = given
    return values


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    at: int
    """Place among the words of the structure."""
    count: int | None
    """None: no list."""
    absent: int


@cache
def _layout(found: tuple[int, int]) -> tuple[struct.Struct, Sequence[_Field]]:
    """The structure of a version, and what of it is asked for."""
    words = " ".join(_LAYOUTS[found]).split()
    codes, names = words[::2], words[1::2]
    fields, at = [], 3  # the header's words
    for code, name in zip(codes, names, strict=True):
        if code.endswith("x"):
            continue  # bytes without a value
        count = int(code[:-1]) if code[:-1] else None
        if name in ASKED:
            fields.append(_Field(name, at, count, (1 << 8 * _SIZES[code[-1]]) - 1))
        at += 1 if count is None else count
    return struct.Struct(f"@HBB{''.join(codes)}"), fields


def version(data: bytes) -> tuple[int, int]:
    """Format and content version. Raises ValueError for what is too short to have one."""
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are not metrics")
    _, format_revision, content_revision = _HEADER.unpack_from(data)
    return format_revision, content_revision


def is_newer(found: tuple[int, int]) -> bool:
    """Whether the version is one that came after those with a layout here."""
    return found > NEWEST and found[0] not in _OF_APUS


def number(metrics: Metrics, name: str) -> int | None:
    """A single value; None: absent."""
    value = metrics.get(name)
    return value if isinstance(value, int) else None


def numbers(metrics: Metrics, name: str) -> Sequence[int | None]:
    """The values of a list; none where it is absent."""
    value = metrics.get(name)
    return () if value is None or isinstance(value, int) else value


def partition_busy(metrics: Metrics) -> dict[int, float]:
    """Utilization of each compute partition in percent: the mean of its compute dies."""
    busy = {}
    for partition in range(PARTITIONS_MAX):
        found = [
            each
            for each in numbers(metrics, BUSY_OF_PARTITION.format(partition))
            if each is not None
        ]
        if found:
            busy[partition] = sum(found) / len(found)
    return busy


def xgmi_rows(metrics: Metrics) -> list[Row]:
    """Rows of `link_samples` for xGMI links (Infinity Fabric between GPUs), without identity.

    The firmware counts bytes link by link from MI300 on. Drivers with metrics of version 1.7 and
    newer tell the state of each link. Older ones have a number for each of eight links, used or
    not: there, and where the state is unknown, a link is a row once it has carried something.

    The other end of a link is unknown: the numbers of the metrics and those of `xgmi_port_num` are
    the same in some drivers only. `xgmi_error` is never read, because reading clears it.
    """
    read = _padded(metrics, "xgmi_read_data_acc")
    written = _padded(metrics, "xgmi_write_data_acc")
    states = _padded(metrics, "xgmi_link_status")
    rows: list[Row] = []
    for link in range(XGMI_LINKS):
        state = states[link]
        is_active = None if state is None else IS_ACTIVE.get(state)
        if is_active is None and not (read[link] or written[link]):
            continue
        row: Row = {
            "link_type": "xgmi",
            "link": link,
            "remote_type": "gpu",
            "active": is_active,
            "speed_bytes_per_second": _speed(metrics),
            "tx_bytes_total": _bytes(written[link]),
            "rx_bytes_total": _bytes(read[link]),
        }
        rows.append(row)
    return rows


def _speed(metrics: Metrics) -> float | None:
    """Lanes times Gbit/s of each, one way."""
    width, gigabits = number(metrics, "xgmi_link_width"), number(metrics, "xgmi_link_speed")
    return width * gigabits * GIGABIT_BYTES if width and gigabits else None


def _padded(metrics: Metrics, name: str) -> list[int | None]:
    values = list(numbers(metrics, name))[:XGMI_LINKS]
    return values + [None] * (XGMI_LINKS - len(values))


def _bytes(kib: int | None) -> int | None:
    return None if kib is None else kib * KIB
