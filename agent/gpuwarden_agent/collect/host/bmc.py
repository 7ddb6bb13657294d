"""Asks the node's BMC by ipmitool for the power of the node and the state of its power supplies.

Only with the setting `ipmi`: a BMC answers in tenths of a second to seconds, and needs root or the device /dev/ipmi0.
Formats: `ipmitool dcmi power reading` and `ipmitool sdr type "Power Supply"` (ipmitool 1.8, manual page), states of
power supplies from IPMI 2.0, table 42-3, sensor type 08h.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.polling import Poller
from gpuwarden_agent.collect.tools import output_of
from gpuwarden_agent.probe import ProbeError, Value

EVERY_S = 60.0
LIMIT_S = 30.0
AGE_S_MAX = 300.0
_WATTS = re.compile(r"^\s*Instantaneous power reading:\s*(\d+)\s*Watts", re.MULTILINE)
_ENTITY = re.compile(r"10\.\d+")
"""Entity 10 is a power supply; the redundancy of all is another entity, or none of these states."""
_FAILED = (
    "failure detected",
    "ac lost",
    "input lost",
    "predictive failure",
    "out-of-range",
    "config",
)
_PRESENT = "presence detected"


@dataclass(frozen=True, slots=True)
class PowerSupplies:
    """Power supplies that the BMC sees."""

    present: int
    failed: int
    """Of those: without input, or with a failure."""


def parse_watts(text: str) -> float | None:
    """Power of the node; None: the BMC measures none."""
    found = _WATTS.search(text)
    return None if found is None or int(found[1]) == 0 else float(found[1])


def parse_supplies(text: str) -> PowerSupplies | None:
    """Supplies by the states of their sensors; None: no sensor tells one."""
    states: dict[str, str] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 5 and _ENTITY.fullmatch(cells[3]):
            states[cells[3]] = f"{states.get(cells[3], '')} {cells[4].lower()}"
    present = [said for said in states.values() if _PRESENT in said]
    if not present:
        return None
    failed = sum(any(word in said for word in _FAILED) for said in present)
    return PowerSupplies(len(present), failed)


class Bmc:
    """The newest answers of the BMC, asked by a thread of its own."""

    def __init__(self, tool: str, clock: Clock, run: Callable[..., str] = output_of) -> None:
        self._tool = tool
        self._run = run
        self._poller = Poller("ipmitool", self._ask, clock, EVERY_S, first_s=0.0)

    def gauges(self) -> Mapping[str, Value]:
        """Columns of `host_samples`; none before the first answer. Raises ProbeError."""
        return {} if self._poller.is_waiting else self._poller.newest(AGE_S_MAX)

    def close(self) -> None:
        """Ask no more."""
        self._poller.close()

    def _ask(self) -> Mapping[str, Value]:
        found: dict[str, Value] = {}
        errors = []
        for arguments, columns in ((_POWER, _power_columns), (_SUPPLIES, _supply_columns)):
            try:
                found |= columns(self._run((self._tool, *arguments), LIMIT_S))
            except ProbeError as error:
                errors.append(error)
        if len(errors) == 2:
            raise errors[0]
        return found


_POWER: Sequence[str] = ("dcmi", "power", "reading")
_SUPPLIES: Sequence[str] = ("sdr", "type", "Power Supply")


def _power_columns(text: str) -> dict[str, Value]:
    watts = parse_watts(text)
    return {} if watts is None else {"host_power_watts": watts}


def _supply_columns(text: str) -> dict[str, Value]:
    found = parse_supplies(text)
    if found is None:
        return {}
    return {"power_supplies": found.present, "power_supplies_failed": found.failed}
