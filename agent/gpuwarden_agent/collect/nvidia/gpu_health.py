"""What a GPU is asked every minute: memory errors, repairs, and what the driver asks for."""

from collections.abc import Callable

from gpuwarden_agent.collect.nvidia import nvml_driver as nvml
from gpuwarden_agent.collect.nvidia.fields import Field, asked_once, read_columns
from gpuwarden_agent.collect.nvidia.nvml_driver import Device, FabricInfo, NvmlError
from gpuwarden_agent.collect.nvidia.query import Asker
from gpuwarden_agent.probe import Value

CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
DRAM, SRAM = 2, 7
"""nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlMemoryLocation_t."""

FATES = (("corrected", CORRECTED), ("uncorrected", UNCORRECTED))
SPANS = (("volatile", VOLATILE), ("aggregate", AGGREGATE))

AMPERE = 7
"""nvmlDeviceArchitecture_t of the first GPUs that remap rows; older ones retire pages."""

RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
"""nvmlDeviceGpuRecoveryAction_t."""

FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
FABRIC_COMPLETED = 3

FABRIC_FAULTS = (
    (0, "bandwidth_degraded"),
    (2, "route_recovery"),
    (4, "route_unhealthy"),
    (6, "access_timeout_recovery"),
)
"""Where in the health mask the two bits of each fault are: 0 not told, 1 yes, 2 no."""
FABRIC_CONFIGURATION_SHIFT = 8
"""Four bits: 0 not told, 1 correct, the rest kinds of incorrect ones."""


def recovery_action(number: int) -> str:
    """What the driver asks for; an action newer than this list by its number."""
    return RECOVERY_ACTIONS.get(number, f"unknown_{number}")


def fabric_health(mask: int) -> str | None:
    """The health mask in words; None: the GPU tells nothing of it."""
    told = [(mask >> shift & 0x3, fault) for shift, fault in FABRIC_FAULTS]
    configuration = mask >> FABRIC_CONFIGURATION_SHIFT & 0xF
    if configuration == 0 and not any(answer for answer, _ in told):
        return None
    faults = [fault for answer, fault in told if answer == 1]
    if configuration > 1:
        faults.append("incorrect_configuration")
    return ",".join(faults) or "healthy"


def fabric_columns(info: FabricInfo) -> dict[str, Value]:
    """Columns of an answer. How registration ended means something only once it has."""
    state = FABRIC_STATES.get(info.state)
    if state is None:
        return {}
    columns: dict[str, Value] = {
        "fabric_state": state,
        "fabric_health": fabric_health(info.health_mask),
    }
    if info.state == FABRIC_COMPLETED:
        name = nvml.CODE_NAMES.get(info.status, f"code_{info.status}")
        columns["fabric_status"] = name.lower()
    return columns


ECC_FIELDS = asked_once(
    (
        Field("ecc_corrected_volatile_total", 3),
        Field("ecc_uncorrected_volatile_total", 4),
        Field("ecc_corrected_aggregate_total", 5),
        Field("ecc_uncorrected_aggregate_total", 6),
    )
)
REMAP_FIELDS = asked_once(
    (
        Field("remapped_rows_corrected_total", 142),
        Field("remapped_rows_uncorrected_total", 143),
        Field("remap_pending", 144),
        Field("remap_failed", 145),
    )
)
RETIREMENT_FIELDS = asked_once(
    (
        Field("retired_pages_corrected_total", 29),
        Field("retired_pages_uncorrected_total", 30),
        Field("retired_pages_pending", 31),
    )
)
RECOVERY_FIELDS = asked_once((Field("recovery_action", 230, decoded=recovery_action),))


class HealthReader:
    """Reads what tells that a GPU is sick."""

    def __init__(self, device: Device, asker: Asker) -> None:
        self._device = device
        self._asker = asker

    def read(self, architecture: int | None, is_mig: bool) -> dict[str, Value]:
        """Columns of `gpu_health_samples`; `architecture` None: unknown; `is_mig`: MIG is on."""
        # Boards without ECC answer some of these calls with zeroes, which would say that memory
        # nobody watches is sound: GeForce does for remapped rows.
        modes = self._asker.ask(self._device.ecc_modes)
        has_ecc = self._asker.is_there("ecc_modes")
        is_ecc_on = has_ecc and (modes is None or modes[0])
        remaps = has_ecc and (architecture is None or architecture >= AMPERE)
        retires = has_ecc and (architecture is None or architecture < AMPERE)
        # With MIG devices there, remapped rows are not told (nvidia-smi: N/A), and nothing says that
        # the fields know it; the call does.
        values = self._fields(is_ecc_on, remaps and not is_mig, retires)
        if is_ecc_on:
            self._add_ecc_totals(values)
            values |= self._errors_by_place()
        if remaps:
            self._add_remapped_rows(values)
            values |= self._remap_histogram()
        if retires:
            self._add_retired_pages(values)
        if has_ecc:
            values["memory_unrepairable"] = self._asker.ask(self._device.is_memory_unrepairable)
        values["inforom_valid"] = self._asker.ask(self._inforom_valid())
        fabric = self._asker.ask(self._device.fabric_info)
        return values | (fabric_columns(fabric) if fabric else {})

    def _fields(self, is_ecc_on: bool, remaps: bool, retires: bool) -> dict[str, Value]:
        asked = [
            *RECOVERY_FIELDS,
            *(ECC_FIELDS if is_ecc_on else ()),
            *(REMAP_FIELDS if remaps else ()),
            *(RETIREMENT_FIELDS if retires else ()),
        ]
        return read_columns(self._device, self._asker, "health_fields", asked)

    def _add_ecc_totals(self, values: dict[str, Value]) -> None:
        for span, since in SPANS:
            for fate, number in FATES:
                column = f"ecc_{fate}_{span}_total"
                if column not in values:
                    errors = self._asker.ask_of(self._device.ecc_errors, number, since)
                    values[column] = errors

    def _errors_by_place(self) -> dict[str, Value]:
        values: dict[str, Value] = {}
        places = {"dram": DRAM}
        sram = self._asker.ask(self._device.sram_errors)
        if sram is None:
            places["sram"] = SRAM
        else:
            values = {
                "sram_corrected_volatile_total": sram.corrected_volatile,
                "sram_uncorrected_volatile_total": sram.uncorrected_volatile,
                "sram_corrected_aggregate_total": sram.corrected_aggregate,
                "sram_uncorrected_aggregate_total": sram.uncorrected_aggregate,
                "sram_threshold_exceeded": sram.is_above_threshold,
            }
        for place, location in places.items():
            for span, since in SPANS:
                for fate, number in FATES:
                    values[f"{place}_{fate}_{span}_total"] = self._asker.ask_of(
                        self._device.memory_errors, location, number, since
                    )
        return values

    def _add_remapped_rows(self, values: dict[str, Value]) -> None:
        if all(each.field.column in values for each in REMAP_FIELDS):
            return
        rows = self._asker.ask(self._device.remapped_rows)
        for each, answer in zip(REMAP_FIELDS, rows or (), strict=False):
            values.setdefault(each.field.column, answer)

    def _remap_histogram(self) -> dict[str, Value]:
        banks = self._asker.ask(self._device.remap_histogram)
        if banks is None or not any(banks):
            # No memory has no banks: the board does not keep the histogram.
            return {}
        names = ("max", "high", "partial", "low", "none")
        return {f"remap_banks_{name}": count for name, count in zip(names, banks, strict=True)}

    def _add_retired_pages(self, values: dict[str, Value]) -> None:
        for column, cause in (
            ("retired_pages_corrected_total", 0),
            ("retired_pages_uncorrected_total", 1),
        ):
            if column not in values:
                values[column] = self._asker.ask_of(self._device.retired_pages, cause)
        if "retired_pages_pending" not in values:
            is_pending = self._asker.ask(self._device.are_retired_pages_pending)
            values["retired_pages_pending"] = is_pending

    def _inforom_valid(self) -> Callable[[], bool]:
        def validate_inforom() -> bool:
            try:
                return self._device.validate_inforom()
            except NvmlError as error:
                if error.code == nvml.CORRUPTED_INFOROM:
                    return False
                raise

        return validate_inforom
