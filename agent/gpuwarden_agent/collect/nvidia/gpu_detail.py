"""What a GPU is asked every ten seconds: `gpu_detail_samples`."""

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia.fields import NS, Field, asked_once, read_columns
from gpuwarden_agent.collect.nvidia.gpm import GpmReader
from gpuwarden_agent.collect.nvidia.nvml_driver import Device
from gpuwarden_agent.collect.nvidia.query import Asker
from gpuwarden_agent.probe import Value

DETAIL_FIELDS = asked_once(
    (
        Field("sync_boost_violation_seconds_total", 76, over=NS),
        Field("board_limit_violation_seconds_total", 77, over=NS),
        Field("low_util_violation_seconds_total", 78, over=NS),
        Field("reliability_violation_seconds_total", 79, over=NS),
        Field("app_clocks_violation_seconds_total", 80, over=NS),
        Field("base_clocks_violation_seconds_total", 81, over=NS),
        Field("pcie_replays_total", 94),
        Field("pcie_replay_rollovers_total", 95),
        Field("pcie_l0_to_recovery_total", 169),
        Field("pcie_correctable_errors_total", 173),
        Field("pcie_naks_received_total", 174),
        Field("pcie_receiver_errors_total", 175),
        Field("pcie_bad_tlps_total", 176),
        Field("pcie_naks_sent_total", 177),
        Field("pcie_bad_dllps_total", 178),
        Field("pcie_nonfatal_errors_total", 179),
        Field("pcie_fatal_errors_total", 180),
        Field("pcie_unsupported_requests_total", 181),
        Field("pcie_lcrc_errors_total", 182),
        Field("pcie_lane_errors_total", 183),
    )
)

FANS_MAX = 16
"""More is no number of fans."""


class DetailReader:
    """Reads what may change within seconds and is not needed each second."""

    def __init__(self, device: Device, asker: Asker, clock: Clock) -> None:
        self._device = device
        self._asker = asker
        self._gpm = GpmReader(device, asker, clock)

    def read(self, is_mig: bool) -> dict[str, Value]:
        """Columns of `gpu_detail_samples` but those of links; `is_mig`: MIG is switched on."""
        device, ask = self._device, self._asker.ask
        values = read_columns(device, self._asker, "detail_fields", DETAIL_FIELDS)
        if "pcie_replays_total" not in values:
            values["pcie_replays_total"] = ask(device.pcie_replays)
        if not is_mig:
            # In MIG mode the engines belong to the MIG devices, and a 0 would read as idle ones.
            values["jpeg_util_percent"] = ask(device.jpeg_utilization)
            values["ofa_util_percent"] = ask(device.ofa_utilization)
        values |= {
            "graphics_clock_mhz": ask(device.graphics_clock_mhz),
            "video_clock_mhz": ask(device.video_clock_mhz),
            "fan_percent": self._fan_percent(),
            "temperature_margin_celsius": ask(device.margin_celsius),
            # No link is of generation 0 or has no lane: that is how some guests say "unknown".
            "pcie_generation": ask(device.pcie_generation) or None,
            "pcie_width": ask(device.pcie_width) or None,
        }
        return values | self._gpm.read()

    def close(self) -> None:
        """Give back what the driver keeps for this."""
        self._gpm.close()

    def _fan_percent(self) -> int | None:
        fans = self._asker.ask(self._device.fans) or 0
        if fans > FANS_MAX:
            return None
        speeds = [self._asker.ask_of(self._device.fan_percent, fan) for fan in range(fans)]
        return max((speed for speed in speeds if speed is not None), default=None)
