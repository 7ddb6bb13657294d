"""Makes results of what test programs print: our kernels, NVIDIA's dcgmi, all_reduce_perf of nccl-tests. Pure."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuwarden.gpu_test import FAIL, OK, SKIPPED, TEXT_CHARACTERS_MAX, GpuTestResult
from gpuwarden.untrusted_text import printable

_BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*([0-9]+(?:\.[0-9]+)?)")
_WRONG = re.compile(r"Out of bounds values\s*:\s*([0-9]+)")


@dataclass(frozen=True, slots=True)
class GpuUnderTest:
    """A GPU that is tested."""

    gpu: int
    gpu_uuid: str


@dataclass(slots=True)
class ProgramOutput:
    """What the kernels' program has said."""

    targets: Sequence[GpuUnderTest]
    """The GPUs that it sees, in its order."""
    tests: Sequence[str]
    """What it was asked for; `copy_peer 2`: of the third GPU, without a number of the first one."""
    results: list[GpuTestResult] = field(default_factory=list)
    tool: str = "none"
    missing: str = ""
    """Why it has no library; empty: it has one."""
    _running: str = ""
    """The test that it is in."""
    _began_at: datetime | None = None
    _done: set[str] = field(default_factory=set)

    def take(self, line: str, now: datetime) -> None:
        """Take a line of its output; other text than JSON objects is left: libraries print, too."""
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            return
        match said:
            case {"library": str(name)}:
                self.tool = _text(name)
            case {"missing": str(reason)}:
                self.missing = _text(reason)
            case {"begin": str(test)} if test in self.tests and test not in self._done:
                self._running, self._began_at = test, now
            case {"test": str(test), "failed": str(reason)} if test == self._running:
                self._add(test, FAIL, None, reason, now)
            case {"test": str(test), "value": float() | int() as value, "wrong": int(wrong), "finding": str(finding)} if test == self._running and 0 <= value < math.inf:  # fmt: skip
                self._add(test, FAIL if wrong else OK, float(value), self._named(finding), now)

    def end(self, reason: str, now: datetime) -> None:
        """The program has ended; `reason`: why it did so too early, else empty. Tests without a result get one."""
        for test in self.tests:
            if test in self._done:
                continue
            if self.missing:
                self._add(test, SKIPPED, None, self.missing, now)
            elif any(one.status == FAIL for one in self.results):
                self._add(test, SKIPPED, None, "an earlier test failed", now)
            else:
                self._add(test, FAIL, None, reason or "the program ended before it", now)

    def _add(
        self, test: str, status: str, value: float | None, finding: str, now: datetime
    ) -> None:
        began_at = self._began_at if test == self._running and self._began_at else now
        name, _, number = test.partition(" ")
        target = self.targets[int(number or 0)]
        self._done.add(test)
        self._running = ""
        self.results.append(
            GpuTestResult(name, status, _text(finding), self.tool, began_at, now, target.gpu, target.gpu_uuid, value)
        )  # fmt: skip

    def _named(self, finding: str) -> str:
        """The program's own numbers of GPUs, {0}, as the node's."""
        for number, target in enumerate(self.targets):
            finding = finding.replace(f"{{{number}}}", str(target.gpu))
        return finding


def of_nccl(text: str, code: int, began_at: datetime, now: datetime) -> GpuTestResult:
    """The result of all_reduce_perf. https://github.com/NVIDIA/nccl-tests"""
    rate, wrong = _BANDWIDTH.search(text), _WRONG.search(text)
    value = float(rate[1]) if rate and code == 0 else None
    if wrong and int(wrong[1]):
        status, finding = FAIL, f"{wrong[1]} sums are wrong"
    elif value is None:
        status, finding = FAIL, f"it ended with {code}: {_last_line(text)}"
    else:
        status, finding = OK, "all sums are right"
    return GpuTestResult(
        "nccl", status, _text(finding), "all_reduce_perf", began_at, now, value=value
    )


def of_dcgm(text: str, code: int, level: int, began_at: datetime, now: datetime) -> GpuTestResult:
    """The result of `dcgmi diag --json`, of DCGM 3 and 4.

    https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html
    """
    tool = f"dcgmi diag -r {level}"
    try:
        document = json.loads(text[text.index("{") : text.rindex("}") + 1])
        found = list(_dcgm_results(document))
    except (ValueError, RecursionError):
        document, found = {}, []
    if not found:
        why = document.get("runtime_error") if isinstance(document, dict) else None
        finding = f"it has no results: {why or _last_line(text) or f'exit {code}'}"
        return GpuTestResult("dcgm", SKIPPED, _text(finding), tool, began_at, now)
    failed = [f"{name}: {why}" for name, status, why in found if status == "fail"]
    passed = sum(status == "pass" for _, status, _ in found)
    skipped = len({name for name, status, _ in found if status == "skip"})
    finding = "; ".join(failed) or f"{passed} results are Pass, {skipped} tests were skipped"
    return GpuTestResult("dcgm", FAIL if failed else OK, _text(finding), tool, began_at, now)


def _dcgm_results(document: Any) -> Iterator[tuple[str, str, str]]:
    """Name of the test, its status in lower case, and its warnings, of each result."""
    if not isinstance(document, Mapping):
        return
    for top in document.values():
        for category in _list(top, "test_categories"):
            for test in _list(category, "tests"):
                for one in _list(test, "results"):
                    if isinstance(one, Mapping) and isinstance(one.get("status"), str):
                        where = one.get("entity_id", one.get("gpu_ids", one.get("gpu_id", "?")))
                        why = [_warning(each) for each in _list(one, "warnings")]
                        yield f"{test.get('name')} of GPU {where}", one["status"].lower(), ", ".join(why) or "no reason given"  # fmt: skip


def _list(document: Any, key: str) -> Sequence[Any]:
    found = document.get(key) if isinstance(document, Mapping) else None
    return found if isinstance(found, list) else []


def _warning(one: Any) -> str:
    return str(one.get("warning", one)) if isinstance(one, Mapping) else str(one)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _text(text: str) -> str:
    """One printable line that may be sent."""
    return printable(text)[:TEXT_CHARACTERS_MAX] or "nothing was said"
