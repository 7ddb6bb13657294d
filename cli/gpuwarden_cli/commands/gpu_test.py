"""Tests this host's GPUs under load, and sends the results to the collector: `gpuwarden agent test-gpus`."""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gpuwarden import logs
from gpuwarden.access import read_token
from gpuwarden.clock import SystemClock
from gpuwarden.gpu_test import FAIL, GPU_TESTS_PATH, SKIPPED, TESTS, GpuTestRun
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted, render, terminal_width
from gpuwarden_client.http import CallError, CollectorEndpoint

if TYPE_CHECKING:
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_cli.gpu_test.readings import GpuUnderTest

SECONDS_MAX = 3600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpuwarden agent test-gpus`."""
    parser.add_argument("gpus", nargs="*", type=int, metavar="GPU", help="index (default: all)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="load of each test of memory and of each precision (default 10)")  # fmt: skip
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="an interpreter that has PyTorch or CuPy (default: this one)")  # fmt: skip
    parser.add_argument("--library", choices=("auto", "torch", "cupy", "numpy"), default="auto", help="numpy: on the CPU, to try the command (default auto)")  # fmt: skip
    parser.add_argument("--dcgm", type=int, choices=(0, 1, 2, 3, 4), default=1, metavar="LEVEL", help="of dcgmi diag, where it is installed; 0: not run (default 1)")  # fmt: skip
    parser.add_argument("--no-send", action="store_true", help="do not send the results to the collector")  # fmt: skip


def run(settings: "AgentSettings", args: argparse.Namespace) -> int:
    """Run the tests; 1 if one failed. Raises StartError, CallError."""
    from gpuwarden_cli.gpu_test.run import TestPlan, run_tests

    if not 0 < args.seconds <= SECONDS_MAX:
        raise StartError(f"--seconds {args.seconds:g} must be above 0, and at most {SECONDS_MAX:g}")
    logs.setup("critical")
    targets, is_simulated = _targets(settings, args.gpus)
    plan = TestPlan(args.python, args.library, args.seconds, args.dcgm, not args.gpus)
    clock = SystemClock()
    results = asyncio.run(run_tests(plan, targets, clock, _said))
    if all(one.status == SKIPPED for one in results):
        raise StartError(f"nothing was tested: {results[0].finding}; --python names an interpreter that has PyTorch or CuPy")  # fmt: skip
    done = GpuTestRun(settings.node_name, uuid4().hex[:12], is_simulated or args.library == "numpy", results)  # fmt: skip
    _show(done, args.format)
    if not args.no_send:
        _send(done, settings)
    return 1 if any(one.status == FAIL for one in results) else 0


def _targets(
    settings: "AgentSettings", chosen: Sequence[int]
) -> tuple[Sequence["GpuUnderTest"], bool]:
    """The GPUs to test, and whether they are simulated. Raises StartError, also where one is in use."""
    from gpuwarden_agent.once import read_once
    from gpuwarden_cli.composition.agent import sources_beside
    from gpuwarden_cli.gpu_test.readings import GpuUnderTest

    sources = sources_beside(settings)
    try:
        tables = read_once(sources.probes, SystemClock(), node=settings.node_name).tables
    finally:
        for probe in sources.probes:
            probe.close()
    known: dict[int, Mapping[str, Any]] = {
        int(row["gpu"] or 0): row
        for row in tables.get("gpus", ())
        if row.get("vendor") == "nvidia" and not row.get("parent_gpu_uuid")
    }
    if unknown := [gpu for gpu in chosen if gpu not in known]:
        raise StartError(f"there is no NVIDIA GPU {unknown[0]} here: {sources.message}")
    wanted = [known[gpu] for gpu in sorted(chosen or known)]
    if not wanted:
        raise StartError(f"there is no NVIDIA GPU here: {sources.message}")
    for row in wanted:
        if row.get("mig_mode"):
            raise StartError(
                f"GPU {row['gpu']} is in MIG mode: only whole GPUs are tested (nvidia-smi -mig 0)"
            )
    is_simulated = any(bool(row["simulated"]) for row in wanted)
    if not is_simulated:
        _refuse_busy(wanted, tables.get("process_samples", ()))
    return [GpuUnderTest(row["gpu"], row["gpu_uuid"]) for row in wanted], is_simulated


def _refuse_busy(
    wanted: Sequence[Mapping[str, Any]], processes: Sequence[Mapping[str, Any]]
) -> None:
    """Raise StartError if a process uses one of the GPUs: its job would fail or be slow."""
    uuids = {row["gpu_uuid"] for row in wanted}
    for row in processes:
        if row["gpu_uuid"] in uuids:
            who = f"process {row['pid']} ({row.get('process_name', 'unknown')} of {row.get('username', 'unknown')})"
            raise StartError(f"GPU {row['gpu']} is used by {who}: drain the node first")


def _show(done: GpuTestRun, form: str) -> None:
    if form == "json":
        print(json.dumps(done.document(), indent=2))
        return
    columns = ["gpu", "test", "status", "value", "finding"]
    in_order = sorted(done.results, key=lambda one: (one.gpu is None, one.gpu, [*TESTS].index(one.test)))  # fmt: skip
    rows = [
        [one.gpu, one.test, one.status, None if one.value is None else f"{one.value:.4g} {TESTS[one.test][0]}", one.finding]
        for one in in_order
    ]  # fmt: skip
    print(render(columns, rows, form, width=terminal_width()), end="")
    if form == "table":
        failed = sum(one.status == FAIL for one in done.results)
        print(f"\n{done.node}: {failed} of {counted(len(done.results), 'test')} failed")


def _send(done: GpuTestRun, settings: "AgentSettings") -> None:
    """Send the results to the first collector that takes them. Raises CallError."""
    try:
        token = None if settings.token_file is None else read_token(settings.token_file).text
    except ValueError as error:
        raise CallError(f"the results are not sent: {error}") from error
    ca = None if settings.tls_ca is None else str(settings.tls_ca)
    reasons = []
    for url in settings.collectors:
        try:
            CollectorEndpoint.of(url, token, ca).call("POST", GPU_TESTS_PATH, done.document())
        except CallError as error:
            reasons.append(str(error))
        else:
            _said(f"sent to {url}: run {done.run} of table gpu_tests")
            return
    raise CallError(f"the results are not sent: {'; '.join(reasons)}")


def _said(line: str) -> None:
    print(f"gpuwarden: {line}", file=sys.stderr, flush=True)
