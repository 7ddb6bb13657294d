"""Reads a few GPUs of any nodes beside each other: settings, readings of the last hour, money; and what differs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.query import Querier, Record

COMPARED_MAX = 8

SETTINGS: Sequence[tuple[str, str]] = (
    ("model", "model"),
    ("driver", "driver_version"),
    ("VBIOS", "vbios_version"),
    ("memory", "memory_total_bytes"),
    ("power limit", "power_limit_watts"),
    ("highest SM clock", "sm_clock_max_mhz"),
    ("PCIe lanes", "pcie_width"),
    ("NVLinks up", "nvlinks_active"),
    ("ECC", "ecc_mode"),
    ("MIG", "mig_mode"),
    ("persistence mode", "persistence_mode"),
    ("compute mode", "compute_mode"),
)
"""Title and column of what should be the same on GPUs that do the same work. PCIe lanes and NVLinks: the least of the hour."""

READINGS: Sequence[tuple[str, str]] = (
    ("utilization", "util_percent"),
    ("SMs active", "sm_active_percent"),
    ("tensor cores active", "tensor_active_percent"),
    ("memory used, most", "memory_used_bytes"),
    ("power", "power_watts"),
    ("temperature, highest", "temperature_celsius"),
    ("SM clock", "sm_clock_mhz"),
    ("held back by the power limit", "power_capped_percent"),
    ("slowed by heat or power brake", "slowed_percent"),
    ("PCIe generation, highest", "pcie_generation"),
    ("data received by PCIe a second", "pcie_rx_bytes_per_second"),
)
"""Title and column of what was read in the last hour; means, if the title does not say else. An idle GPU lowers its
PCIe generation, so this is not a setting.
"""

_SLOWED = "reason_software_thermal_slowdown_seconds, reason_hardware_thermal_slowdown_seconds, reason_hardware_power_brake_seconds"  # fmt: skip
_COMPARED = f"""
WITH found AS (
    SELECT * FROM gpus WHERE replaced_by IS NULL AND (
        list_contains($names, gpu_uuid) OR (mig_instance IS NULL AND list_contains($names, node || '/' || gpu)))
),
hour AS (
    SELECT gpu_uuid, sum(util_percent_avg * samples) / sum(samples) FILTER (util_percent_avg IS NOT NULL) AS util_percent,
        avg(sm_active_percent_avg) AS sm_active_percent, avg(tensor_active_percent_avg) AS tensor_active_percent,
        max(memory_used_bytes_max) AS memory_used_bytes, avg(power_watts_avg) AS power_watts,
        max(temperature_celsius_max) AS temperature_celsius, avg(sm_clock_mhz_avg) AS sm_clock_mhz,
        avg(pcie_rx_bytes_per_second_avg) AS pcie_rx_bytes_per_second,
        100 * sum(reason_software_power_cap_seconds) / sum(busy_seconds + idle_seconds + unknown_seconds)
            AS power_capped_percent,
        100 * sum(greatest({_SLOWED})) / sum(busy_seconds + idle_seconds + unknown_seconds) AS slowed_percent,
        max(pcie_generation_max) AS pcie_generation, min(pcie_width_min) AS pcie_width,
        min(nvlinks_active_min) AS nvlinks_active
    FROM gpu_1m WHERE ts >= now()::TIMESTAMP - INTERVAL 1 HOUR AND gpu_uuid IN (SELECT gpu_uuid FROM found)
    GROUP BY gpu_uuid
),
held AS (
    SELECT gpu_uuid, string_agg(DISTINCT username, ', ' ORDER BY username) AS users,
        string_agg(DISTINCT job, ', ' ORDER BY job) AS jobs
    FROM gpu_holders_now WHERE gpu_uuid IN (SELECT gpu_uuid FROM found) GROUP BY gpu_uuid
),
firing AS (
    SELECT gpu_uuid, list(DISTINCT rule ORDER BY rule) AS rules FROM alerts_now
    WHERE state = 'firing' AND gpu_uuid IN (SELECT gpu_uuid FROM found) GROUP BY gpu_uuid
),
week AS (
    SELECT gpu_uuid, sum(usd) AS usd, sum(usd) FILTER (is_waste) AS wasted_usd FROM waste
    WHERE ts >= now()::TIMESTAMP - INTERVAL 7 DAY AND gpu_uuid IN (SELECT gpu_uuid FROM found) GROUP BY gpu_uuid
)
SELECT f.gpu_uuid, f.node, f.gpu, f.mig_instance, f.model, n.driver_version, f.vbios_version, f.memory_total_bytes,
    g.power_limit_watts, f.sm_clock_max_mhz, f.ecc_mode, f.mig_mode, f.persistence_mode, f.compute_mode,
    g.gpu_uuid IS NULL AS silent, f.usd_per_hour, hour.* EXCLUDE (gpu_uuid), held.users, held.jobs, firing.rules,
    week.usd AS week_usd, week.wasted_usd AS week_wasted_usd
FROM found f LEFT JOIN nodes n USING (node) LEFT JOIN gpus_now g USING (gpu_uuid) LEFT JOIN hour USING (gpu_uuid)
LEFT JOIN held USING (gpu_uuid) LEFT JOIN firing USING (gpu_uuid) LEFT JOIN week USING (gpu_uuid)
"""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One line of the table: a value for each GPU, None: not known."""

    title: str
    column: str
    values: Sequence[Any]
    odd: frozenset[int] = frozenset()
    """Places of the values that differ from those of most."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """GPUs in the order in which they were asked for."""

    names: Sequence[str]
    """Of the GPUs that were found, as asked: node/index, or a UUID."""
    gpus: Sequence[Record]
    unknown: Sequence[str]
    """Names that no GPU has."""
    settings: Sequence[ComparedRow]
    readings: Sequence[ComparedRow]

    @property
    def differing(self) -> Sequence[str]:
        """Titles of the settings that differ."""
        return [row.title for row in self.settings if row.odd]


def odd_ones(values: Sequence[Any]) -> frozenset[int]:
    """Places of the values that differ from the most frequent one. Where no value is the most frequent,
    all are odd. What is not known is not odd.
    """
    counts = Counter(value for value in values if value is not None).most_common(2)
    if len(counts) < 2:
        return frozenset()
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return frozenset(
        at for at, value in enumerate(values) if value is not None and (usual is None or value != usual)
    )  # fmt: skip


def compared(names: Sequence[str], records: Sequence[Record]) -> Comparison:
    """The comparison of GPUs by name. A GPU that was named twice is there once."""
    by_name: dict[str, Record] = {}
    for record in records:
        by_name[str(record["gpu_uuid"])] = record
        if record["mig_instance"] is None:
            by_name[f"{record['node']}/{record['gpu']}"] = record
    found: dict[str, tuple[str, Record]] = {}
    for name in names:
        if name in by_name:
            found.setdefault(str(by_name[name]["gpu_uuid"]), (name, by_name[name]))
    gpus = [record for _, record in found.values()]

    def row(title: str, column: str) -> ComparedRow:
        return ComparedRow(title, column, [gpu[column] for gpu in gpus])

    settings = [row(*one) for one in SETTINGS]
    return Comparison(
        [name for name, _ in found.values()],
        gpus,
        [name for name in dict.fromkeys(names) if name not in by_name],
        [
            ComparedRow(one.title, one.column, one.values, odd_ones(one.values))
            for one in settings
            if any(value is not None for value in one.values)
        ],
        [
            one
            for one in (row(*each) for each in READINGS)
            if any(value is not None for value in one.values)
        ],
    )


async def read_compared(querier: Querier, names: Sequence[str]) -> Comparison:
    """Read GPUs by "node/index" or UUID. Raises QueryError."""
    found = await querier.query(_COMPARED, {"names": list(names)}) if names else None
    return compared(names, found.records() if found is not None else [])
