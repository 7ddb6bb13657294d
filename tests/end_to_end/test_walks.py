"""The walks of a sample and of a query in ARCHITECTURE.md are the ways that they take, and short."""

import asyncio
import json
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.traced import MARK, ROOT, Step, Tracer, trace_query_processes

from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden_agent import daemon
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_collector.daemon import running
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_simulator import SimulatedNode

SAMPLE_FILES_MAX, QUERY_FILES_MAX = 30, 8


def walk(title: str) -> list[Step]:
    """The steps of a walk, from the table below its title."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition(f"**{title}")[2].partition("\n\n**")[0].partition("\n\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", table, flags=re.MULTILINE)


def files(steps: Sequence[Step]) -> list[str]:
    return list(dict.fromkeys(file for file, _ in steps))


def missing_in_order(steps: Sequence[Step], traced: Iterator[Step]) -> list[Step]:
    """Steps that do not come in the trace behind those before them."""
    return [step for step in steps if step not in traced]


async def test_a_sample_goes_the_way_that_the_architecture_says(tmp_path: Path) -> None:
    steps, clock = walk("A sample"), SystemClock()
    node = SimulatedNode("n1", 1, model_named("H100-SXM-80GB"), 0, host=False)
    tracer, stop = Tracer(), asyncio.Event()
    with tracer:
        async with running(CollectorSettings(port=0, data_dir=tmp_path / "store"), clock) as opened:
            settings = AgentSettings(
                collector_url=(opened.url,), state_dir=tmp_path / "agent", node="n1"
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(daemon.run(settings, clock, stop, probes=[node]))
                async with asyncio.timeout(60):
                    while not opened.stats.rows["gpu_samples"]:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
                stop.set()
    assert missing_in_order(steps, iter(tracer.steps)) == []
    assert 0 < len(files(steps)) <= SAMPLE_FILES_MAX


async def test_a_query_goes_the_way_that_the_architecture_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forkserver, "_server", forkserver._server)
    trace_query_processes()
    body = json.dumps({"sql": "SELECT count(*) FROM gpu_samples"}).encode()
    headers = {"Content-Type": "application/json"}
    tracer = Tracer("QueryProcess.ask")
    async with running(
        CollectorSettings(port=0, data_dir=tmp_path / "store"), SystemClock()
    ) as opened:
        asked = urllib.request.Request(f"{opened.url}/v1/sql", body, headers)

        def ask() -> bytes:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return bytes(answer.read())

        with tracer:
            answer = await asyncio.to_thread(ask)
    forkserver._server.stop()
    assert json.loads(answer)["rows"] == [[0]]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith(MARK)]
    in_process = [(file, function) for file, function in json.loads(lines[-1].removeprefix(MARK))]
    begins = next(at for at, (_, function) in enumerate(in_process) if function == "_answer")
    steps = walk("A query")
    # The collector's own queries ask processes, too.
    stack = next(stack for stack in tracer.stacks if stack[0] == steps[0])
    passed = [*stack, *in_process[begins:]]
    assert missing_in_order(steps, iter(passed)) == []
    assert files(passed) == files(steps), "files that wait for the answer"
    assert 0 < len(files(steps)) <= QUERY_FILES_MAX
