"""Maps fields of nvidia-smi to columns: `--query-gpu` by name, `-q -x` by path.

Names are those of `nvidia-smi --help-query-gpu` from driver 418 to 595, with deprecated names and aliases. Fields
that measure something else than a column are left out: `pcie.tx` is a sample of 20 ms, `module.power.*` is the whole
board of a Grace Hopper.
"""

from collections.abc import Iterator

from gpuwarden_importing.values import DETAILS, GPUS, HEALTH, PROCESSES, SAMPLES, LogField

TIME, INDEX, UUID, BUS_ID, DRIVER, HOST, COUNT = (
    "timestamp",
    "index",
    "uuid",
    "pci.bus_id",
    "driver_version",
    "hostname",
    "count",
)
"""Fields that identify a line."""
KEYS = frozenset({TIME, INDEX, UUID, BUS_ID, DRIVER, HOST, COUNT})

ALIASES = {
    "gpu_name": "name",
    "gpu_serial": "serial",
    "gpu_uuid": UUID,
    "gpu_bus_id": BUS_ID,
    "gpu_index": INDEX,
    "kmd_version": DRIVER,
    "inforom.image": "inforom.img",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
    "gpu.power.draw.average": "power.draw.average",
    "gpu.power.draw.instant": "power.draw.instant",
    "gpu.power.requested_limit": "power.limit",
    "gpu.power.current_limit": "enforced.power.limit",
    "gpu.power.default_limit": "power.default_limit",
    "gpu.power.min_limit": "power.min_limit",
    "gpu.power.max_limit": "power.max_limit",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.max.mem": "clocks.max.memory",
    "pcie.link.gen.current": "pcie.link.gen.gpucurrent",
}
"""Aliases and deprecated names. Also, clocks_throttle_reasons is clocks_event_reasons."""

REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
    "display_clock_setting": 0x100,
}
"""Bits of clock event reasons, by name without prefix."""

EVENT_REASONS = "clocks_event_reasons."
POWER, INSTANT = (SAMPLES, "power_watts"), (SAMPLES, "power_instant_watts")
INSTANT_NOTE = "power_watts is power.draw.instant where there is no average"
"""Some GPUs have no average (`power.draw.average` is N/A on Turing and RTX PRO 6000)."""

ALWAYS_TOLD = 0xFF
"""Bits that all drivers report; the display's bit is newer."""

_COUNTED = {
    "sw_power_cap": (SAMPLES, "power_violation_seconds_total"),
    "sync_boost": (DETAILS, "sync_boost_violation_seconds_total"),
    "sw_thermal_slowdown": (SAMPLES, "sw_thermal_seconds_total"),
    "hw_thermal_slowdown": (SAMPLES, "hw_thermal_seconds_total"),
    "hw_power_brake_slowdown": (SAMPLES, "hw_power_brake_seconds_total"),
    # Short names of -q -x.
    "sw_therm_slowdown": (SAMPLES, "sw_thermal_seconds_total"),
    "hw_therm_slowdown": (SAMPLES, "hw_thermal_seconds_total"),
    "hw_power_brake": (SAMPLES, "hw_power_brake_seconds_total"),
}
"""Columns of counters in microseconds; each is a field id of nvml.h."""


def _ecc() -> Iterator[tuple[str, LogField]]:
    for fate in ("corrected", "uncorrected"):
        for since in ("volatile", "aggregate"):
            start = f"ecc.errors.{fate}.{since}"
            yield f"{start}.total", LogField(HEALTH, f"ecc_{fate}_{since}_total", "count")
            yield f"{start}.dram", LogField(HEALTH, f"dram_{fate}_{since}_total", "count")
            yield (
                f"{start}.device_memory",
                LogField(HEALTH, f"dram_{fate}_{since}_total", "count", rank=1),
            )
            yield f"{start}.sram", LogField(HEALTH, f"sram_{fate}_{since}_total", "count")


def _both(quantity: str, unit: str, *names: tuple[str, str, str]) -> Iterator[tuple[str, LogField]]:
    for name, table, column in names:
        yield name, LogField(table, column, quantity, unit)


def _common_csv() -> Iterator[tuple[str, LogField]]:
    yield from _both(
        "percent", "%",
        ("utilization.gpu", SAMPLES, "util_percent"),
        ("utilization.memory", SAMPLES, "memory_util_percent"),
        ("utilization.encoder", SAMPLES, "encoder_util_percent"),
        ("utilization.decoder", SAMPLES, "decoder_util_percent"),
        ("utilization.jpeg", DETAILS, "jpeg_util_percent"),
        ("utilization.ofa", DETAILS, "ofa_util_percent"),
        ("fan.speed", DETAILS, "fan_percent"),
    )  # fmt: skip
    yield from _both(
        "bytes", "MiB",
        ("memory.total", SAMPLES, "memory_total_bytes"),
        ("memory.used", SAMPLES, "memory_used_bytes"),
        ("memory.free", SAMPLES, "memory_free_bytes"),
        ("memory.reserved", SAMPLES, "memory_reserved_bytes"),
    )  # fmt: skip
    yield from _both(
        "watts", "W",
        ("power.draw", SAMPLES, "power_watts"),
        ("power.draw.instant", SAMPLES, "power_instant_watts"),
        ("enforced.power.limit", SAMPLES, "power_limit_watts"),
        ("power.default_limit", GPUS, "power_limit_default_watts"),
        ("power.min_limit", GPUS, "power_limit_min_watts"),
        ("power.max_limit", GPUS, "power_limit_max_watts"),
    )  # fmt: skip
    yield "power.draw.average", LogField(SAMPLES, "power_watts", "watts", "W", rank=1)
    yield "power.limit", LogField(SAMPLES, "power_limit_watts", "watts", "W", rank=1)
    yield from _both(
        "celsius", "C",
        ("temperature.gpu", SAMPLES, "temperature_celsius"),
        ("temperature.memory", SAMPLES, "memory_temperature_celsius"),
        ("temperature.gpu.tlimit", DETAILS, "temperature_margin_celsius"),
    )  # fmt: skip
    yield from _both(
        "mhz", "MHz",
        ("clocks.current.sm", SAMPLES, "sm_clock_mhz"),
        ("clocks.current.memory", SAMPLES, "memory_clock_mhz"),
        ("clocks.current.graphics", DETAILS, "graphics_clock_mhz"),
        ("clocks.current.video", DETAILS, "video_clock_mhz"),
        ("clocks.max.sm", GPUS, "sm_clock_max_mhz"),
        ("clocks.max.memory", GPUS, "memory_clock_max_mhz"),
    )  # fmt: skip


def _health_csv() -> Iterator[tuple[str, LogField]]:
    yield from _ecc()
    yield from _both(
        "count", "",
        ("retired_pages.single_bit_ecc.count", HEALTH, "retired_pages_corrected_total"),
        ("retired_pages.double_bit.count", HEALTH, "retired_pages_uncorrected_total"),
        ("remapped_rows.correctable", HEALTH, "remapped_rows_corrected_total"),
        ("remapped_rows.uncorrectable", HEALTH, "remapped_rows_uncorrected_total"),
        *((f"remapped_rows.histogram.{n}", HEALTH, f"remap_banks_{n}")
          for n in ("max", "high", "partial", "low", "none")),
        ("pcie.link.gen.gpucurrent", DETAILS, "pcie_generation"),
        ("pcie.link.gen.max", GPUS, "pcie_generation_max"),
    )  # fmt: skip
    yield from _both(
        "lanes", "",
        ("pcie.link.width.current", DETAILS, "pcie_width"),
        ("pcie.link.width.max", GPUS, "pcie_width_max"),
    )  # fmt: skip
    yield from _both(
        "flag", "",
        ("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded", HEALTH, "sram_threshold_exceeded"),
        ("retired_pages.pending", HEALTH, "retired_pages_pending"),
        ("remapped_rows.pending", HEALTH, "remap_pending"),
        ("remapped_rows.failure", HEALTH, "remap_failed"),
        ("inforom.checksum_validation", HEALTH, "inforom_valid"),
        ("persistence_mode", GPUS, "persistence_mode"),
        ("mig.mode.current", GPUS, "mig_mode"),
        ("ecc.mode.current", GPUS, "ecc_mode"),
        ("ecc.mode.pending", GPUS, "ecc_mode_pending"),
    )  # fmt: skip
    yield from _both(
        "text", "",
        ("name", GPUS, "model"),
        ("serial", GPUS, "serial"),
        ("vbios_version", GPUS, "vbios_version"),
        ("inforom.img", GPUS, "inforom_version"),
        ("compute_cap", GPUS, "compute_capability"),
    )  # fmt: skip
    yield "compute_mode", LogField(GPUS, "compute_mode", "compute_mode")
    yield "pstate", LogField(SAMPLES, "pstate", "pstate")
    yield "gpu_recovery_action", LogField(HEALTH, "recovery_action", "recovery")
    yield "fabric.state", LogField(HEALTH, "fabric_state", "word")
    yield "fabric.status", LogField(HEALTH, "fabric_status", "word")
    yield f"{EVENT_REASONS}active", LogField(SAMPLES, "clocks_event_reasons", "bits")
    for name, (table, column) in _COUNTED.items():
        yield f"clocks_event_reasons_counters.{name}", LogField(table, column, "seconds", "us")


CSV_FIELDS: dict[str, LogField] = dict((*_common_csv(), *_health_csv()))
"""By the name in `--query-gpu`, without aliases."""

APP_FIELDS: dict[str, LogField] = {
    "pid": LogField(PROCESSES, "pid", "count"),
    "process_name": LogField(PROCESSES, "process_name", "executable"),
    "used_gpu_memory": LogField(PROCESSES, "gpu_memory_bytes", "bytes", "MiB"),
    "used_memory": LogField(PROCESSES, "gpu_memory_bytes", "bytes", "MiB"),
    # Of --query-accounted-apps, over the lifetime of a process.
    "gpu_utilization": LogField(PROCESSES, "sm_util_percent", "percent", "%"),
    "gpu_util": LogField(PROCESSES, "sm_util_percent", "percent", "%"),
    "max_memory_usage": LogField(PROCESSES, "gpu_memory_bytes", "bytes", "MiB"),
}
"""By the name in `--query-compute-apps` and `--query-accounted-apps`."""


def canonical(name: str) -> str:
    """The name of a field without aliases."""
    name = name.strip().replace("clocks_throttle_reasons", "clocks_event_reasons")
    return ALIASES.get(name, name)


def is_field(name: str) -> bool:
    """Whether a name is a field of `--query-gpu`."""
    name = canonical(name)
    return name in CSV_FIELDS or name in KEYS or name.startswith((EVENT_REASONS, "ecc.", "clocks."))


_XML_OF_CSV = {
    "utilization/gpu_util": "utilization.gpu",
    "utilization/memory_util": "utilization.memory",
    "utilization/encoder_util": "utilization.encoder",
    "utilization/decoder_util": "utilization.decoder",
    "utilization/jpeg_util": "utilization.jpeg",
    "utilization/ofa_util": "utilization.ofa",
    "fan_speed": "fan.speed",
    "fb_memory_usage/total": "memory.total",
    "fb_memory_usage/used": "memory.used",
    "fb_memory_usage/free": "memory.free",
    "fb_memory_usage/reserved": "memory.reserved",
    **{
        path: name
        for group in ("power_readings", "gpu_power_readings")
        for path, name in {
            f"{group}/power_draw": "power.draw",
            f"{group}/average_power_draw": "power.draw.average",
            f"{group}/instant_power_draw": "power.draw.instant",
            f"{group}/enforced_power_limit": "enforced.power.limit",
            f"{group}/current_power_limit": "enforced.power.limit",
            f"{group}/power_limit": "power.limit",
            f"{group}/requested_power_limit": "power.limit",
            f"{group}/default_power_limit": "power.default_limit",
            f"{group}/min_power_limit": "power.min_limit",
            f"{group}/max_power_limit": "power.max_limit",
        }.items()
    },
    "temperature/gpu_temp": "temperature.gpu",
    "temperature/memory_temp": "temperature.memory",
    "temperature/gpu_temp_tlimit": "temperature.gpu.tlimit",
    "clocks/sm_clock": "clocks.current.sm",
    "clocks/mem_clock": "clocks.current.memory",
    "clocks/graphics_clock": "clocks.current.graphics",
    "clocks/video_clock": "clocks.current.video",
    "max_clocks/sm_clock": "clocks.max.sm",
    "max_clocks/mem_clock": "clocks.max.memory",
    "performance_state": "pstate",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie.link.gen.gpucurrent",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie.link.gen.max",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "pcie.link.width.current",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie.link.width.max",
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired_pages.single_bit_ecc.count",
    "retired_pages/double_bit_retirement/retired_count": "retired_pages.double_bit.count",
    "retired_pages/pending_retirement": "retired_pages.pending",
    "remapped_rows/remapped_row_corr": "remapped_rows.correctable",
    "remapped_rows/remapped_row_unc": "remapped_rows.uncorrectable",
    "remapped_rows/remapped_row_pending": "remapped_rows.pending",
    "remapped_rows/remapped_row_failure": "remapped_rows.failure",
    **{
        f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{n}": f"remapped_rows.histogram.{n}"
        for n in ("max", "high", "partial", "low", "none")
    },
    "ecc_errors/aggregate/sram_threshold_exceeded":
        "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    **{
        f"ecc_errors/{since}/{place}_{ending}": f"ecc.errors.{fate}.{since}.{place}"
        for since in ("volatile", "aggregate")
        for place in ("dram", "sram")
        for ending, fate in (("correctable", "corrected"), ("uncorrectable", "uncorrected"))
    },
    **{
        f"ecc_errors/{since}/{ending}/{place}": f"ecc.errors.{fate}.{since}.{place}"
        for since in ("volatile", "aggregate")
        for place in ("device_memory", "total")
        for ending, fate in (("single_bit", "corrected"), ("double_bit", "uncorrected"))
    },
    "product_name": "name",
    "serial": "serial",
    "vbios_version": "vbios_version",
    "inforom_version/img_version": "inforom.img",
    "persistence_mode": "persistence_mode",
    "compute_mode": "compute_mode",
    "mig_mode/current_mig": "mig.mode.current",
    "ecc_mode/current_ecc": "ecc.mode.current",
    "ecc_mode/pending_ecc": "ecc.mode.pending",
    "gpu_recovery_action": "gpu_recovery_action",
    "fabric/state": "fabric.state",
    "fabric/status": "fabric.status",
    **{
        f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}":
            f"clocks_event_reasons_counters.{name}"
        for name in _COUNTED
    },
}  # fmt: skip

XML_FIELDS: dict[str, LogField] = {
    **{path: CSV_FIELDS[name] for path, name in _XML_OF_CSV.items()},
    "bar1_memory_usage/total": LogField(DETAILS, "bar1_total_bytes", "bytes", "MiB"),
    "bar1_memory_usage/used": LogField(DETAILS, "bar1_used_bytes", "bytes", "MiB"),
    "pci/replay_counter": LogField(DETAILS, "pcie_replays_total", "count"),
    "pci/replay_rollover_counter": LogField(DETAILS, "pcie_replay_rollovers_total", "count"),
    "ecc_errors/unrepairable_memory": LogField(HEALTH, "memory_unrepairable", "flag"),
    "retired_pages/pending_blacklist": LogField(HEALTH, "retired_pages_pending", "flag", rank=1),
    "product_architecture": LogField(GPUS, "architecture", "architecture"),
    "board_part_number": LogField(GPUS, "part_number", "text"),
    "gsp_firmware_version": LogField(GPUS, "gsp_firmware_version", "text"),
    "temperature/gpu_temp_slow_threshold": LogField(
        GPUS, "temperature_slowdown_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_max_threshold": LogField(
        GPUS, "temperature_shutdown_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_max_gpu_threshold": LogField(
        GPUS, "temperature_gpu_max_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_max_mem_threshold": LogField(
        GPUS, "temperature_memory_max_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_slow_tlimit_threshold": LogField(
        GPUS, "margin_slowdown_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_max_tlimit_threshold": LogField(
        GPUS, "margin_shutdown_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_max_gpu_tlimit_threshold": LogField(
        GPUS, "margin_gpu_max_celsius", "celsius", "C"
    ),
    "temperature/gpu_temp_max_mem_tlimit_threshold": LogField(
        GPUS, "margin_memory_max_celsius", "celsius", "C"
    ),
}
"""By path below `<gpu>`."""


def sums(since: str) -> tuple[str, str, str]:
    """Two paths whose sum is the uncorrected SRAM errors since driver 550, and the column."""
    start = f"ecc_errors/{since}/sram_uncorrectable"
    return f"{start}_parity", f"{start}_secded", f"sram_uncorrected_{since}_total"
