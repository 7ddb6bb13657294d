"""Defines the tests of GPUs by `gpuwarden agent test-gpus`, and the results that it sends to a collector."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.clock import naive_utc
from gpuwarden.metrics import Type
from gpuwarden.node_name import NodeNameError, check_node_name
from gpuwarden.table import Column, Table

GPU_TESTS_PATH = "/v1/gpu-tests"
OK, FAIL, SKIPPED = "ok", "fail", "skipped"
RESULTS_MAX = 1_000
"""Results of one run."""
TEXT_CHARACTERS_MAX = 500
_RUN = re.compile(r"[0-9a-f]{12}")
_OLDEST, _AHEAD = timedelta(days=1), timedelta(minutes=10)
_GPU_MAX = 1024

TESTS: Mapping[str, tuple[str | None, str]] = {
    "memory": ("errors", "words of the free memory that did not keep a pattern; 0x00, 0xFF, 0x55, 0xAA and addresses"),
    "matmul_fp32": ("TFLOP/s", "matrix products of known result; any wrong element fails it"),
    "matmul_fp16": ("TFLOP/s", "the same by tensor cores"),
    "copy_device": ("GB/s", "reads and writes of device memory"),
    "copy_to_device": ("GB/s", "from pinned host memory, over PCIe or C2C"),
    "copy_from_device": ("GB/s", "to pinned host memory"),
    "copy_peer": ("GB/s", "to each other GPU of the node, the slowest one"),
    "nccl": ("GB/s", "bus bandwidth of all_reduce_perf of nccl-tests, all GPUs, 1 GiB; of the node"),
    "dcgm": (None, "dcgmi diag; of the node"),
}  # fmt: skip
"""Unit of the value, and what is tested, by name in the order in which they run."""

# fmt: off
GPU_TESTS = Table("gpu_tests", "test of a GPU by gpuwarden agent test-gpus", ("node", "run", "gpu_uuid", "test"), (
    Column("ts", Type.TIMESTAMP, "When it ended, UTC.", required=True),
    Column("node", Type.STRING, "Node.", required=True),
    Column("run", Type.STRING, "Identity of the run that it is part of.", required=True),
    Column("gpu", Type.INT32, "Index of the GPU; NULL: a test of the node."),
    Column("gpu_uuid", Type.STRING, "The GPU; NULL: a test of the node."),
    Column("test", Type.STRING, f"One of {', '.join(TESTS)}.", required=True),
    Column("status", Type.STRING, "ok, fail, or skipped: it could not run.", required=True),
    Column("value", Type.FLOAT64, "What was measured; NULL: nothing."),
    Column("unit", Type.STRING, "Unit of the value: errors, TFLOP/s or GB/s; NULL: the test has no value."),
    Column("finding", Type.STRING, "What was tested, or what is wrong, in a sentence.", required=True),
    Column("tool", Type.STRING, "Library or program and its version: torch 2.9.1.", required=True),
    Column("began_at", Type.TIMESTAMP, "When it began, UTC.", required=True),
    Column("simulated", Type.BOOL, "True without a real GPU.", required=True),
))
# fmt: on


class GpuTestError(ValueError):
    """The document has no results; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class GpuTestResult:
    """One result. Instants are aware."""

    test: str
    status: str
    finding: str
    tool: str
    began_at: datetime
    ended_at: datetime
    gpu: int | None = None
    gpu_uuid: str | None = None
    """None: a test of the node."""
    value: float | None = None


@dataclass(frozen=True, slots=True)
class GpuTestRun:
    """The results of one run on a node."""

    node: str
    run: str
    simulated: bool
    results: Sequence[GpuTestResult]

    def document(self) -> dict[str, Any]:
        """For JSON; `run_of` reads it."""

        def plain(result: GpuTestResult) -> dict[str, Any]:
            return {
                name: value.isoformat() if isinstance(value, datetime) else value
                for name, value in asdict(result).items()
            }

        return {
            "node": self.node, "run": self.run, "simulated": self.simulated,
            "results": [plain(result) for result in self.results],
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """Rows of table `gpu_tests`; instants naive, UTC."""
        return [
            {
                "ts": naive_utc(one.ended_at), "node": self.node, "run": self.run, "gpu": one.gpu, "gpu_uuid": one.gpu_uuid,
                "test": one.test, "status": one.status, "value": one.value,
                "unit": None if one.value is None else TESTS[one.test][0], "finding": one.finding, "tool": one.tool,
                "began_at": naive_utc(one.began_at), "simulated": self.simulated,
            }
            for one in self.results
        ]  # fmt: skip


def run_of(document: Any, now: datetime) -> GpuTestRun:
    """The run of a request's JSON. Raises GpuTestError: one line."""
    if not isinstance(document, dict) or document.keys() != {"node", "run", "simulated", "results"}:
        raise GpuTestError("the body must be JSON with node, run, simulated and results")
    node, run, simulated, results = (
        document[key] for key in ("node", "run", "simulated", "results")
    )
    try:
        check_node_name(node)
    except NodeNameError as error:
        raise GpuTestError(f"node: {error}") from error
    if not isinstance(run, str) or _RUN.fullmatch(run) is None:
        raise GpuTestError("run: it must be 12 hexadecimal digits")
    if not isinstance(simulated, bool):
        raise GpuTestError("simulated: it must be true or false")
    if not isinstance(results, list) or not 0 < len(results) <= RESULTS_MAX:
        raise GpuTestError(f"results: it must be a list of 1 to {RESULTS_MAX}")
    return GpuTestRun(node, run, simulated, [_result(one, now) for one in results])


def _result(document: Any, now: datetime) -> GpuTestResult:
    keys = set(GpuTestResult.__slots__)
    if not isinstance(document, dict) or document.keys() != keys:
        raise GpuTestError(f"results: each must have {', '.join(GpuTestResult.__slots__)}")
    if document["test"] not in [*TESTS]:
        raise GpuTestError(f"test: it must be one of {', '.join(TESTS)}")
    if document["status"] not in (OK, FAIL, SKIPPED):
        raise GpuTestError(f"status: it must be {OK}, {FAIL} or {SKIPPED}")
    gpu, gpu_uuid, value = document["gpu"], document["gpu_uuid"], document["value"]
    if (gpu is None) != (gpu_uuid is None):
        raise GpuTestError("gpu and gpu_uuid: give both or neither")
    if gpu is not None and (type(gpu) is not int or not 0 <= gpu <= _GPU_MAX):
        raise GpuTestError("gpu: it must be the index of a GPU, such as 0")
    if value is not None and (type(value) not in (int, float) or not 0 <= value < 1e15):
        raise GpuTestError("value: it must be a number that is not negative")
    texts = {"finding": document["finding"], "tool": document["tool"], "gpu_uuid": gpu_uuid}
    for name, text in texts.items():
        if name == "gpu_uuid" and gpu_uuid is None:
            continue
        if (
            not isinstance(text, str)
            or not 0 < len(text) <= TEXT_CHARACTERS_MAX
            or not text.isprintable()
        ):
            raise GpuTestError(
                f"{name}: it must be a text of 1 to {TEXT_CHARACTERS_MAX} printable characters"
            )
    began_at, ended_at = (_instant(document, name, now) for name in ("began_at", "ended_at"))
    if ended_at < began_at:
        raise GpuTestError("ended_at: it must not be before began_at")
    made = {**document, "began_at": began_at, "ended_at": ended_at}
    return GpuTestResult(**made | {"value": None if value is None else float(value)})


def _instant(document: Mapping[str, Any], key: str, now: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(document[key])
        is_near = found.tzinfo is not None and now - _OLDEST <= found <= now + _AHEAD
    except (TypeError, ValueError, OverflowError):
        is_near = False
    if not is_near:
        raise GpuTestError(
            f"{key}: it must be an instant of the last day: is the clock of the node right?"
        )
    return found
