"""Maps the throttle reasons of AMD GPUs to the catalogue's: pure functions.

There are two formats. Up to MI200 and on Radeons the driver gives a bit for
each limit in force (`indep_throttle_status`, the SMU_THROTTLER bits of amdgpu_smu.h). From MI300 on
the firmware counts, of each limit, the cycles in which it held (`*_residency_acc`) of those that
passed (`accumulation_counter`).

Only reasons that NVIDIA has, too, are reported: package power as the software power cap, temperatures
as software thermal slowdown (the firmware lowers clocks step by step), PROCHOT as hardware slowdown.
Limits of current have no counterpart: if only these hold, the reasons are absent, because 0 would
mean that there are none.
"""

from collections.abc import Mapping

from gpuwarden_agent.collect.amd.gpu_metrics import Metrics, number
from gpuwarden_agent.probe import Value

POWER_CAP, HARDWARE_SLOWDOWN, SOFTWARE_THERMAL = 0x4, 0x8, 0x20
"""Bits of `clocks_event_reasons`."""


def _bits(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


_COUNTERPARTS = {
    POWER_CAP: _bits(0, 7),  # PPT0 to SPPT_APU
    SOFTWARE_THERMAL: _bits(32, 45),  # TEMP_GPU to VRHOT1
    HARDWARE_SLOWDOWN: _bits(46, 47),  # PROCHOT_CPU, PROCHOT_GFX
}
_RESIDENCIES = {
    "ppt_residency_acc": POWER_CAP,
    "socket_thm_residency_acc": SOFTWARE_THERMAL,
    "vr_thm_residency_acc": SOFTWARE_THERMAL,
    "hbm_thm_residency_acc": SOFTWARE_THERMAL,
    "prochot_residency_acc": HARDWARE_SLOWDOWN,
}
_COUNTER_BITS = 32


def reasons_of_status(status: int) -> int | None:
    """`clocks_event_reasons` for an `indep_throttle_status`; None: only limits without a counterpart."""
    reasons = sum(reason for reason, bits in _COUNTERPARTS.items() if status & bits)
    return reasons if reasons or not status else None


def passed(before: int, after: int) -> int | None:
    """Growth of a 32-bit counter, wrapped or not; None: it was reset."""
    gained = (after - before) % (1 << _COUNTER_BITS)
    return gained if gained < 1 << _COUNTER_BITS - 1 else None


def shares(before: Mapping[str, int], after: Mapping[str, int]) -> dict[int, float]:
    """Share of the cycles between two readings in which each reason held, by its bit.

    Several limits of one reason hold at the same time, so the longest counts. Empty if no cycle passed
    or the counters were reset.
    """
    cycles = passed(before["accumulation_counter"], after["accumulation_counter"])
    if not cycles:
        return {}
    found: dict[int, float] = {}
    for name, reason in _RESIDENCIES.items():
        if name in before and name in after:
            held = passed(before[name], after[name])
            if held is None:
                return {}
            found[reason] = max(found.get(reason, 0.0), min(1.0, held / cycles))
    return found


class Throttling:
    """Computes columns of `gpu_samples` from readings. Counters start at the first reading."""

    def __init__(self) -> None:
        self._last: tuple[float, Mapping[str, int]] | None = None
        self._seconds = {POWER_CAP: 0.0, SOFTWARE_THERMAL: 0.0}

    def columns(self, metrics: Metrics, now_s: float) -> dict[str, Value]:
        """`now_s` is monotonic."""
        status = number(metrics, "indep_throttle_status")
        if status is not None:
            return {"clocks_event_reasons": reasons_of_status(status)}
        names = ("accumulation_counter", *_RESIDENCIES)
        counters = {name: n for name in names if (n := number(metrics, name)) is not None}
        if len(counters) < 2 or "accumulation_counter" not in counters:
            return {}
        last, self._last = self._last, (now_s, counters)
        found = shares(last[1], counters) if last else {}
        for reason in self._seconds:
            if last and reason in found:
                self._seconds[reason] += found[reason] * (now_s - last[0])
        return {
            "power_violation_seconds_total": self._seconds[POWER_CAP],
            "thermal_violation_seconds_total": self._seconds[SOFTWARE_THERMAL],
            "clocks_event_reasons": sum(reason for reason, share in found.items() if share)
            if found
            else None,
        }
