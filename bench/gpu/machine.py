"""The GPU that is measured, behind one door: a real one, or the simulator's in its place."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden.models import model_named
from gpuwarden_agent.probe import Probe, ProbeError, Reading, Row
from gpuwarden_simulator import Placement, SimulatedNode, Workload

SMI_LIMIT_S = 20.0
MIB = 1024**2


@dataclass
class Machine:
    """The machine that is measured, and how to read it."""

    name: str
    device: Any
    """A Device of `collect/nvidia/nvml.py`."""
    handle: Any
    """NVML's own handle; None: there is no NVML."""
    probes: Callable[[str], list[Probe]]
    """New probes of the whole node, while the named workload runs."""
    gpu_probe: Callable[[], Probe]
    smi: Callable[[Sequence[str]], Mapping[str, str]]
    """Values of these fields from nvidia-smi; fields that it does not know are left out."""
    backend: str


def real_machine() -> Machine | str:
    """The first GPU of this machine, or one line on why there is none."""
    from gpuwarden_agent.collect.discovery import discover
    from gpuwarden_agent.collect.nvidia.device import open_driver
    from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
    from gpuwarden_agent.collect.nvidia.metrics import ROWS
    from gpuwarden_agent.collect.nvidia.nvml import NvmlError, NvmlUnavailable

    driver = open_driver()
    if isinstance(driver, NvmlUnavailable):
        return driver.reason
    devices = driver.devices()
    if not devices:
        return "the NVIDIA driver is here, but no GPU"
    device = devices[0]
    try:
        uuid = device.open()
        model = device.ask(ROWS["name"])
        name = f"{model}, driver {driver.driver_version()}, CUDA {driver.cuda_version()}"
    except NvmlError as error:
        return f"GPU 0 cannot be opened: {error}"
    import pynvml

    state = Path(tempfile.mkdtemp(prefix="gpuwarden-evidence-"))
    return Machine(
        name=name,
        device=device,
        handle=pynvml.nvmlDeviceGetHandleByUUID(uuid),
        probes=lambda _: list(discover("nvml").all_probes(state)),
        gpu_probe=lambda: GpuProbe(driver.devices()[0], SystemClock()),
        smi=nvidia_smi,
        backend="nvml",
    )


def nvidia_smi(fields: Sequence[str]) -> Mapping[str, str]:
    """Ask nvidia-smi for all fields at once; one that it does not know is left out and it is asked again."""
    left = list(fields)
    while left:
        done = subprocess.run(
            ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(left)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=SMI_LIMIT_S, check=False,
        )  # fmt: skip
        unknown = [field for field in left if f'"{field}"' in done.stdout + done.stderr]
        if done.returncode == 0:
            values = [value.strip() for value in done.stdout.strip().split(", ")]
            return dict(zip(left, values, strict=False))
        if not unknown:
            return {}
        left = [field for field in left if field not in unknown]
    return {}


SIMULATED = {
    "idle": Workload.FREE,
    "idle_held": Workload.IDLE_HELD,
    "small_kernels": Workload.HOST_BOUND,
    "loader_few_workers": Workload.INPUT_BOUND_CPU,
    "loader_none": Workload.INPUT_BOUND_MAIN,
    "slow_storage": Workload.INPUT_BOUND_STORAGE,
}
"""What the simulator does in the place of a workload; anything else trains."""


def simulated_machine() -> Machine:
    """A GPU that does not exist: the run's own code is tried, its numbers mean nothing."""
    model = model_named("H200-SXM-141GB")

    def node(workload: str) -> SimulatedNode:
        placed = [Placement((0,), SIMULATED.get(workload, Workload.TRAINING))]
        return SimulatedNode("simulated", 1, model, 1, placed)

    probe = node("idle")
    return Machine(
        name=f"simulated {model.name}: every number here is made up",
        device=_SimulatedDevice(probe),
        handle=None,
        probes=lambda workload: [node(workload)],
        gpu_probe=lambda: node("idle"),
        smi=lambda fields: _simulated_smi(probe, fields),
        backend="simulator",
    )


def read_now(probe: Probe) -> Reading:
    """One reading of everything, with inventory; empty where the probe fails."""
    try:
        return {**probe.describe(), **probe.read(to_ms(SystemClock().now()))}
    except ProbeError:
        return {}


class _SimulatedDevice:
    """Answers two calls of the port, and NOT_SUPPORTED to the others."""

    index = 0

    def __init__(self, probe: SimulatedNode) -> None:
        row = probe.describe()["gpus"][0]
        self.uuid = row["gpu_uuid"]
        self._known = {"name": row.get("model"), "serial": row.get("serial")}

    def ask(self, call: Any, *_: Any) -> Any:
        return self._answer(call.reading)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._answer(name)

    def _answer(self, name: str) -> Any:
        from gpuwarden_agent.collect.nvidia.nvml import NOT_SUPPORTED, NvmlError

        if name in self._known:
            return self._known[name]
        raise NvmlError(NOT_SUPPORTED, name)


def _simulated_smi(probe: SimulatedNode, fields: Sequence[str]) -> Mapping[str, str]:
    time.sleep(0.002)  # it reads the same clock as those who ask, and time must go forward
    row: Row = {**read_now(probe).get("gpus", [{}])[0]}
    said = {"name": row.get("model"), "uuid": row.get("gpu_uuid"), "serial": "[N/A]"}
    memory = row.get("memory_total_bytes")
    if isinstance(memory, int):
        said["memory.total"] = str(memory // MIB)
    return {field: str(said[field]) for field in fields if field in said}
