"""Defines the faults of the campaign: what fails, for how long, and what must be observed."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos import witness
from bench.chaos.recorded_disk import end, run
from bench.chaos.stage import (
    CABLE,
    DISK_BYTES,
    FAKETIME,
    FREE_BYTES_MIN,
    Stage,
)
from bench.this_host import children_of

LASTS_VARIABLE = "GPUWARDEN_CHAOS_LASTS_S"
LASTS_S = float(os.environ.get(LASTS_VARIABLE, "8"))
"""About so long a fault lasts."""
MINUTES_S = 240.0
Step = Callable[[Stage], Coroutine[None, None, None]]


@dataclass(slots=True)
class Verdict:
    """The result of one fault."""

    fault: str
    seed: int
    acknowledged: int = 0
    """Rows."""
    lost: int = 0
    doubled: int = 0
    unexplained_s: int = 0
    """Seconds without a sample that no event and no row of `coverage` accounts for."""
    catch_up_s: float | None = None
    """From the end of the fault until all samples made before it were stored; None: not in time."""
    was_unready: bool = False
    """Whether /readyz said 503 meanwhile."""
    alerts: list[str] = field(default_factory=list)
    """Rules that fired."""
    said: list[str] = field(default_factory=list)
    """Answers to agents other than 204."""
    wrong: list[str] = field(default_factory=list)


async def _nothing(stage: Stage) -> None:
    """Nothing to prepare."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a collector, its agents or what is between them."""

    name: str
    strike: Step
    """From its beginning to its end."""
    prepare: Step = _nothing
    """Before anything was started."""
    is_unready: bool = False
    """Whether /readyz must say so."""
    fires: frozenset[str] = frozenset()
    """Rules that must fire."""

    def wrong(self, verdict: Verdict) -> list[str]:
        """The expectations that the fault's run did not meet."""
        found = []
        if self.is_unready and not verdict.was_unready:
            found.append("/readyz did not say that something is wrong")
        if silent := self.fires - set(verdict.alerts):
            found.append(f"did not fire: {', '.join(sorted(silent))}")
        if verdict.unexplained_s:
            found.append(f"{verdict.unexplained_s} s without samples that no event reports")
        return found


def _during(begin: Callable[[Stage], object], end: Callable[[Stage], object]) -> Step:
    async def strike(stage: Stage) -> None:
        await asyncio.to_thread(begin, stage)
        try:
            await asyncio.sleep(LASTS_S * stage.random.uniform(0.6, 1.4))
        finally:
            await asyncio.to_thread(end, stage)

    return strike


def _process(stage: Stage, name: str) -> int:
    """Id of a process of the collector by name; "" is the collector itself."""
    assert stage.collector is not None
    if not name:
        return stage.collector.pid
    found = [
        pid
        for pid in children_of(stage.collector.pid)
        if name in Path(f"/proc/{pid}/comm").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
    ]
    if not found:
        raise RuntimeError(f"the collector has no process {name}")
    return stage.random.choice(found)


def _kill(name: str) -> Step:
    async def strike(stage: Stage) -> None:
        os.kill(_process(stage, name), signal.SIGKILL)
        await asyncio.sleep(LASTS_S / 2)

    return strike


async def _kill_collector(stage: Stage) -> None:
    assert stage.collector is not None
    stage.collector.kill()
    await asyncio.to_thread(stage.collector.wait)
    await asyncio.sleep(stage.random.uniform(0, LASTS_S))
    await stage.start_collector()


async def _kill_agents(stage: Stage) -> None:
    assert stage.agents is not None
    stage.agents.kill()
    await asyncio.to_thread(stage.agents.wait)
    await asyncio.sleep(stage.random.uniform(0, LASTS_S))
    stage.start_agents()


async def _upgrade(stage: Stage) -> None:
    assert stage.collector is not None
    stage.collector.send_signal(signal.SIGTERM)
    await asyncio.to_thread(stage.collector.wait)
    await stage.start_collector()


def _stop(name: str) -> Step:
    async def strike(stage: Stage) -> None:
        pid = _process(stage, name)
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(LASTS_S)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return strike


def _stop_agents(stage: Stage) -> None:
    assert stage.agents is not None
    stage.agents.send_signal(signal.SIGSTOP)


def _continue_agents(stage: Stage) -> None:
    assert stage.agents is not None
    stage.agents.send_signal(signal.SIGCONT)


def _packets(*rules: str) -> Callable[[Stage], None]:
    """Filter packets between the two sides."""

    def begin(stage: Stage) -> None:
        del stage
        lines = "".join(
            f'add rule inet chaos {chain} iifname "{CABLE}" {rule}\n'
            if chain == "input"
            else f'add rule inet chaos {chain} oifname "{CABLE}" {rule}\n'
            for chain, rule in (rule.split(" ", 1) for rule in rules)
        )
        subprocess.run(
            ["nft", "-f", "-"],
            input="add table inet chaos\n"
            "add chain inet chaos input { type filter hook input priority 0; }\n"
            "add chain inet chaos output { type filter hook output priority 0; }\n" + lines,
            text=True,
            check=True,
            capture_output=True,
        )

    return begin


def _no_filter(stage: Stage) -> None:
    del stage
    run("nft", "delete", "table", "inet", "chaos")


def _write(name: str, text: str) -> Callable[[Stage], None]:
    def work(stage: Stage) -> None:
        (stage.relay / name).write_text(text)

    return work


def _remove(name: str) -> Callable[[Stage], None]:
    return lambda stage: (stage.relay / name).unlink(missing_ok=True)


def _set_dns(*, is_away: bool) -> Callable[[Stage], None]:
    def work(stage: Stage) -> None:
        stage.dns.is_away = is_away

    return work


def _small_disk(which: str) -> Step:
    async def prepare(stage: Stage) -> None:
        place = getattr(stage, which)
        size = DISK_BYTES if which == "store" else DISK_BYTES // 16
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "chaos", str(place))
        stage.stack.callback(run, "umount", "--lazy", str(place))

    return prepare


def _fill(which: str) -> Step:
    async def strike(stage: Stage) -> None:
        place = getattr(stage, which)
        filler = place / "filler"
        left = stage.random.choice([0, FREE_BYTES_MIN // 2]) if which == "store" else 0
        found = os.statvfs(place)
        await asyncio.to_thread(_write_bytes, filler, found.f_bavail * found.f_frsize - left)
        await asyncio.sleep(LASTS_S * 1.5)
        filler.unlink()

    return strike


def _write_bytes(path: Path, count: int) -> None:
    """Write up to `count` bytes, until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while count > 0 and (written := file.write(bytes(min(count, 65_536)))):
            count -= written


def _faulty_folder(which: str) -> Step:
    async def prepare(stage: Stage) -> None:
        place = getattr(stage, which)
        behind = stage.folder / f"{which}-behind"
        behind.mkdir()
        words = [sys.executable, "-m", "bench.chaos.faulty_folder", str(behind), str(place)]
        server = subprocess.Popen(words)  # noqa: ASYNC220  returns at once
        stage.stack.callback(end, server)
        stage.stack.callback(run, "umount", "--lazy", str(place))
        while not os.path.ismount(place):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)

    return prepare


def _fail_writes(which: str, number: int) -> Step:
    def control(stage: Stage) -> Path:
        return stage.folder / f"{which}-behind.errno"

    return _during(
        lambda stage: control(stage).write_text(str(number)),
        lambda stage: control(stage).unlink(),
    )


async def _false_clock(stage: Stage) -> None:
    if FAKETIME is None:
        raise RuntimeError("needs libfaketime: apt install faketime")
    stage.is_clock_false = True


def _set_clock(side: str, *offsets: str) -> Step:
    async def strike(stage: Stage) -> None:
        stage.set_clock(side, stage.random.choice(offsets))
        await asyncio.sleep(LASTS_S * 1.5)
        stage.set_clock(side, "+0")

    return strike


async def _return(stage: Stage) -> None:
    """Restart with more agents, each with an hour of samples to send."""
    stage.nodes = int(os.environ.get("GPUWARDEN_CHAOS_AGENTS", "20"))
    stage.history_s = 3_600
    await _kill_agents(stage)


def _both(one: Step, other: Step) -> Step:
    async def strike(stage: Stage) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(one(stage))
            await asyncio.sleep(stage.random.uniform(0, 3))
            group.create_task(other(stage))

    return strike


def _for_minutes(step: Callable[[Stage], object], back: Callable[[Stage], object]) -> Step:
    """Last long enough for a rule that waits for two minutes to fire."""

    async def strike(stage: Stage) -> None:
        await asyncio.to_thread(step, stage)
        try:
            await asyncio.sleep(MINUTES_S)
        finally:
            await asyncio.to_thread(back, stage)

    return strike


_partition = _during(_packets("input drop", "output drop"), _no_filter)
_half_open = _during(_packets("output tcp sport 8750 drop"), _no_filter)
_loss = _during(
    _packets("input numgen random mod 100 < 30 drop", "output numgen random mod 100 < 30 drop"),
    _no_filter,
)
_latency = _during(_write(witness.DELAY_S, "0.25"), _remove(witness.DELAY_S))

FAULTS = {
    fault.name: fault
    for fault in (
        Fault("collector killed", _kill_collector),
        Fault("storage process killed", _kill("gpuwarden-store")),
        Fault("query process killed", _kill("gpuwarden-query")),
        Fault("fork server killed", _kill("gpuwarden_collector.forked")),
        Fault("agents killed", _kill_agents),
        Fault("collector stopped", _stop("")),
        Fault("storage process stopped", _stop("gpuwarden-store")),
        Fault("query process stopped", _stop("gpuwarden-query")),
        Fault("agents stopped", _during(_stop_agents, _continue_agents)),
        Fault("partition", _partition),
        Fault("30 % of packets lost", _loss),
        Fault("500 ms latency", _latency),
        Fault("answers lost, connections half open", _half_open),
        Fault("collector mute", _during(_write(witness.MUTE, ""), _remove(witness.MUTE))),
        Fault("name server away", _during(_set_dns(is_away=True), _set_dns(is_away=False))),
        Fault("collector's disk full", _fill("store"), _small_disk("store"), is_unready=True),
        Fault("agents' disk full", _fill("spools"), _small_disk("spools")),
        Fault("collector's disk fails", _fail_writes("store", errno.EIO), _faulty_folder("store")),
        Fault(
            "agents' disk fails",
            _fail_writes("spools", errno.EIO),
            _faulty_folder("spools"),
        ),
        Fault(
            "collector's clock jumps",
            _set_clock("collector", "+3600", "-3600", "+1209600", "-1209600"),
            _false_clock,
            is_unready=True,
        ),
        Fault(
            "agents' clocks jump",
            _set_clock("agents", "+3600", "-600"),
            _false_clock,
        ),
        Fault("upgrade under load", _upgrade),
        Fault("agents return after an hour", _return),
        Fault("partition, collector killed", _both(_partition, _kill_collector)),
        Fault(
            "packets lost, storage process stopped",
            _both(_loss, _stop("gpuwarden-store")),
        ),
        Fault(
            "partition for minutes",
            _for_minutes(_packets("input drop", "output drop"), _no_filter),
            fires=frozenset({"agent_stale"}),
        ),
        Fault(
            "collector's clock wrong for minutes",
            _for_minutes(
                lambda stage: stage.set_clock("collector", "-3600"),
                lambda stage: stage.set_clock("collector", "+0"),
            ),
            _false_clock,
            is_unready=True,
            fires=frozenset({"collector_clock_wrong"}),
        ),
    )
}
