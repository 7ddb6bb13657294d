"""Records what the driver answers: every call and every field id, with return code, value, p50 and p99.

The walk runs in a process of its own (`python support.py`), which prints a JSON line a call: one that
hangs or crashes in the driver's library costs the calls behind it, and not the run.
"""

import csv
import inspect
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

from bench.gpu import children
from bench.gpu.machine import Machine, real_machine, simulated_machine

FIELD_IDS = range(1, 308)
TIMES = 40
CALL_LIMIT_S = 0.4
"""Limit for all repetitions of one call: slow calls are repeated less."""
QUIET_S = 15.0
"""How long one call may say nothing before it counts as hung."""
CRASHES_MAX = 12

LINKS = range(18)
ARGUMENTS: dict[str, Sequence[tuple[Any, ...]]] = {
    "nvmlDeviceGetTemperature": [(0,)],
    "nvmlDeviceGetTemperatureV": [(0,)],
    "nvmlDeviceGetTemperatureThreshold": [(which,) for which in range(8)],
    "nvmlDeviceGetClockInfo": [(which,) for which in range(4)],
    "nvmlDeviceGetMaxClockInfo": [(which,) for which in range(4)],
    "nvmlDeviceGetPcieThroughput": [(0,), (1,)],
    "nvmlDeviceGetTotalEccErrors": list(product((0, 1), (0, 1))),
    "nvmlDeviceGetMemoryErrorCounter": list(product((0, 1), (0, 1), range(8))),
    "nvmlDeviceGetViolationStatus": [(which,) for which in (0, 1, 2, 3, 4, 5, 10, 11)],
    "nvmlDeviceGetRetiredPages": [(0,), (1,)],
    "nvmlDeviceGetProcessUtilization": [(0,)],
    "nvmlDeviceGetFanSpeed_v2": [(0,)],
    "nvmlDeviceGetNvLinkState": [(link,) for link in LINKS],
    "nvmlDeviceGetNvLinkVersion": [(link,) for link in LINKS],
    "nvmlDeviceGetNvLinkRemotePciInfo": [(link,) for link in LINKS],
    "nvmlDeviceGetNvLinkErrorCounter": list(product(LINKS, range(5))),
    "nvmlDeviceGetNvLinkCapability": list(product((0,), range(6))),
    "nvmlDeviceGetSupportedGraphicsClocks": [],
}
"""Arguments after the handle for calls that need some."""

IDENTIFYING = re.compile("uuid|serial|pdi|hostname|certificate|metadata|open", re.IGNORECASE)
"""Calls whose answer is not shown: results are made to be passed on."""

LINK_READINGS = (
    "is_nvlink_active", "nvlink_version", "nvlink_remote_type", "nvlink_remote_bus_id",
)  # fmt: skip
PART_ARGUMENTS: dict[str, Sequence[tuple[int, ...]]] = {
    "fan_percent": [(0,)],
    "process_utilization": [(0,)],
    "mig_device": [(0,)],
    "ecc_errors": [*product((0, 1), (0, 1))],
    "memory_errors": [*product(range(8), (0, 1), (0, 1))],
    "retired_pages": [(0,), (1,)],
    "nvlink_errors": [*product(LINKS, range(5))],
    "common_ancestor": [],
    "field_values": [],
} | {name: [(link,) for link in LINKS] for name in LINK_READINGS}
"""What readings about a part are tried with, by name."""

LEFT_OUT = ("nvmlDeviceGetHandleBy", "nvmlDeviceGetDeviceHandleFrom")


@dataclass(frozen=True)
class Answer:
    """The result of one call."""

    kind: str
    """call (NVML's own), port (ours), field (nvmlDeviceGetFieldValues) or gpm."""
    name: str
    arguments: str
    code: str
    """NVML's name of the return code of the last repetition; SUCCESS where it was answered."""
    times: int
    p50_us: float
    p99_us: float
    max_us: float
    value: str

    @property
    def is_supported(self) -> bool:
        """Whether the call was answered."""
        return self.code == "SUCCESS"


@dataclass(frozen=True)
class Question:
    """A call to try: how it is named in the answer, and the call, which raises for no answer."""

    kind: str
    name: str
    arguments: str
    call: Callable[[], Any]


def walk_apart(simulated: bool, limit_s: float, take: Callable[[Answer], None]) -> list[str]:
    """Walk in a process of its own, which is started again behind a call that it ended in.

    One line for each such call, and for a walk that was not at its end after `limit_s`.
    """
    ends = time.monotonic() + limit_s
    asked, troubles = 0, []
    while True:
        more, trouble = _walk_once(simulated, asked, take)
        asked += more
        if trouble is None:
            return troubles
        troubles.append(trouble)
        if not more or len(troubles) > CRASHES_MAX or time.monotonic() > ends:
            return [*troubles, "the walk over all calls was given up"]


def _walk_once(
    simulated: bool, skip: int, take: Callable[[Answer], None]
) -> tuple[int, str | None]:
    """How many calls were asked behind the first `skip`, and the one that ended the process."""
    code = "from bench.gpu.support import main; main()"
    command = [sys.executable, "-c", code, str(skip), *(["--simulator"] if simulated else [])]
    asked, name = 0, "nothing"
    with children.start(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        killer = threading.Timer(QUIET_S, process.kill)
        killer.start()
        for line in process.stdout:
            killer.cancel()
            killer = threading.Timer(QUIET_S, process.kill)
            killer.start()
            said = json.loads(line)
            if "asking" in said:
                asked, name = asked + 1, said["asking"]
            else:
                take(Answer(**said))
        killer.cancel()
    how = "hung" if process.returncode == -signal.SIGKILL else f"ended with {process.returncode}"
    return asked, f"the process that asked {name} {how}" if process.returncode else None


def main() -> None:
    """Ask everything but the first so many, and print what is asked and what was answered."""
    machine = simulated_machine() if "--simulator" in sys.argv else real_machine()
    assert isinstance(machine, Machine), machine
    for question in islice(questions(machine), int(sys.argv[1]), None):
        print(json.dumps({"asking": f"{question.name}({question.arguments})"}), flush=True)
        answer = timed(question.kind, question.name, question.arguments, question.call)
        print(json.dumps(asdict(answer)), flush=True)


def questions(machine: Machine) -> Iterator[Question]:
    """Everything that can be asked, always in the same order."""
    from gpuwarden_agent.collect.nvidia.metrics import FIELDS, ROWS

    for name, row in ROWS.items():
        for arguments in PART_ARGUMENTS.get(name, [()]):
            shown = " ".join(map(str, arguments))
            yield Question("port", name, shown, partial(machine.device.ask, row, *arguments))
    asked = [field.query for field in FIELDS["gpu_samples"]]
    yield Question("port", "field_values", "", partial(machine.device.field_values, asked))
    yield from _fields(machine)
    if machine.handle is not None:
        yield from _calls(machine.handle)


def timed(kind: str, name: str, arguments: str, call: Callable[[], Any]) -> Answer:
    """Repeat a call and return its results; `call` raises for no answer."""
    took: list[float] = []
    code, value = "SUCCESS", ""
    while len(took) < TIMES and sum(took) < CALL_LIMIT_S * 1e6:
        began = time.perf_counter_ns()
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001  # the answer of a call that is tried out
            took.append((time.perf_counter_ns() - began) / 1000)
            code = _code(error)
            continue
        took.append((time.perf_counter_ns() - began) / 1000)
        code = "SUCCESS"
        value = "hidden" if IDENTIFYING.search(name) else _shown(answer)
    took.sort()
    p50, p99 = (took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99))
    return Answer(
        kind, name, arguments, code, len(took), round(p50, 1), round(p99, 1), round(took[-1], 1), value
    )  # fmt: skip


def write(path: Path, answers: Sequence[Answer]) -> None:
    """All answers as CSV."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Answer)])
        writer.writeheader()
        writer.writerows(asdict(answer) for answer in answers)


def _fields(machine: Machine) -> Iterator[Question]:
    from gpuwarden_agent.collect.nvidia.nvml import CODE_NAMES, FieldQuery

    class RefusedError(Exception):
        """The field's own return code was not SUCCESS."""

    def ask(field: int) -> Any:
        answer = machine.device.field_values([FieldQuery(field)])[0]
        if answer.value is None:
            raise RefusedError(CODE_NAMES.get(answer.code, str(answer.code)))
        return answer.value

    for field in FIELD_IDS:
        yield Question("field", f"FI {field}", "", partial(ask, field))


def _calls(handle: Any) -> Iterator[Question]:
    """Every nvmlDeviceGet... of the binding that takes a handle alone, and those of ARGUMENTS."""
    import pynvml

    for name, function in inspect.getmembers(pynvml, inspect.isfunction):
        if not name.startswith("nvmlDeviceGet") or name.startswith(LEFT_OUT):
            continue
        parameters = inspect.signature(function).parameters.values()
        needed = sum(parameter.default is parameter.empty for parameter in parameters)
        for arguments in ARGUMENTS.get(name, [()] if needed == 1 else []):
            shown = " ".join(map(str, arguments))
            yield Question("call", name, shown, partial(function, handle, *arguments))


def _code(error: Exception) -> str:
    from gpuwarden_agent.collect.nvidia.nvml import CODE_NAMES

    code = getattr(error, "code", getattr(error, "value", None))
    if isinstance(code, int):
        return CODE_NAMES.get(code, f"code {code}")
    return str(error) if type(error).__name__ == "RefusedError" else type(error).__name__


def _shown(answer: Any) -> str:
    """The value in a line; structures member by member."""
    members = getattr(answer, "_fields_", None)
    if members:
        parts = ((member[0], getattr(answer, member[0])) for member in members)
        answer = {
            name: value for name, value in parts if isinstance(value, (int, float, str, bytes))
        }
    return str(answer).replace("\n", " ")[:160]
