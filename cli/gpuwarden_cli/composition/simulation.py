"""Composes a fleet of simulated or replayed nodes that sends to a collector over the real wire."""

import asyncio
import itertools
import os
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from gpuwarden import logs
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.models import models_named
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.settings import TIMING, AgentSettings, Timing
from gpuwarden_cli.composition.replay import replay_nodes
from gpuwarden_cli.composition.supervision import run_until_signalled, say
from gpuwarden_cli.output import counted
from gpuwarden_cli.progress import ProgressLine, progress
from gpuwarden_client.http import CallError, ask, timestamp_param
from gpuwarden_simulator import fleet_name, fleet_nodes, load_script
from gpuwarden_simulator.fleet import run_fleet
from gpuwarden_simulator.recordings.replay import replay_name

_IN_USE = """
WITH runs AS (
    SELECT node, arg_max(kind, ts) AS kind FROM events
    WHERE kind IN ('agent_started', 'agent_stopped') AND ts > $now::TIMESTAMP - INTERVAL 1 DAY
    GROUP BY node
)
SELECT node FROM nodes LEFT JOIN runs USING (node)
WHERE last_seen_at > $now::TIMESTAMP - INTERVAL 90 SECOND AND coalesce(runs.kind, '') <> 'agent_stopped'
"""


def names_in_use(url: str) -> set[str]:
    """Names of nodes that send now; empty when the collector does not answer."""
    now = timestamp_param(SystemClock().now())
    try:
        return {row[0] for row in ask(_IN_USE, {"now": now}, url=url, timeout_s=10).rows}
    except CallError:
        return set()  # it may start later, and it refuses the second of two agents itself


def free_names(
    count: int, name_of: Callable[[int], str], in_use: Collection[str], state_dir: Path | None
) -> list[str]:
    """The first names that are not in use; a name whose spool is in `state_dir` is free."""
    free = (
        name
        for name in map(name_of, itertools.count())
        if name not in in_use or (state_dir is not None and (state_dir / name).exists())
    )
    return list(itertools.islice(free, count))


def _fleet(
    nodes: int,
    gpus_per_node: int,
    model_names: str,
    seed: int,
    replay: Path | None,
    script: Path | None,
    names: Callable[[Callable[[int], str]], list[str]],
) -> tuple[Sequence[tuple[str, Probe | Sequence[Probe]]], str]:
    """The probes of each node by name, and a line on the fleet; `names` gives free names of a form. Raises
    StartError.
    """
    if replay is not None:
        if script is not None:
            raise StartError("--script: faults are for simulated nodes, not for --replay")
        return replay_nodes(replay, names(replay_name))
    try:
        models = models_named(model_names)
    except ValueError as error:
        raise StartError(f"--model: {error}") from error
    message = f"simulating {counted(nodes, 'node')} with {gpus_per_node} {'/'.join(m.name for m in models)} each"
    sizes = {fleet_name(number): gpus_per_node for number in range(nodes)}
    of_nodes = {name: models[number % len(models)] for number, name in enumerate(sizes)}
    faults = load_script(script, sizes, of_nodes) if script else {}
    called = names(fleet_name)
    if called != [*sizes]:
        span = called[0] if nodes == 1 else f"{called[0]} to {called[-1]}"
        message += f", called {span} as other agents send as sim-0001 and on,"
    return fleet_nodes([*sizes.values()], models, seed, faults, called), message


def _shown_by(bar: ProgressLine, clock: Clock) -> Callable[[Counters], None]:
    began_s = clock.monotonic()

    def shown(counters: Counters) -> None:
        bar.done = clock.monotonic() - began_s
        bar.text = f"{counters.rows.total():,} rows, {counters.spool_batches:,} batches wait"

    return shown


def _say_counts(counters: Counters) -> None:
    say(
        f"{counted(counters.batches_acknowledged, 'batch')} of {counters.batches_sealed:,} with"
        f" {counters.rows.total():,} rows are at the collector;"
        f" {counted(counters.ticks_missed, 'tick')} missed"
    )


def run_simulation(
    *,
    nodes: int,
    gpus_per_node: int,
    model_names: str,
    seed: int,
    collector_url: str,
    duration_s: float | None,
    history_s: int,
    state_dir: Path | None,
    replay: Path | None = None,
    script: Path | None = None,
) -> int:
    """Run `gpuwarden simulate`. Raises StartError.

    `replay`: a recording that all nodes replay. `script`: faults of the simulated nodes.
    """
    logs.setup("warning")
    ca, token = os.environ.get("GPUWARDEN_CA"), os.environ.get("GPUWARDEN_TOKEN_FILE")
    settings = AgentSettings(
        backend="simulator",
        token_file=Path(token) if token else None,
        tls_ca=Path(ca) if ca else None,
    )
    # A run of fixed length should deliver all its rows, also if the collector is restarting.
    is_short = duration_s is not None and state_dir is None
    timing = Timing(stop_timeout_s=60) if is_short else TIMING
    names = partial(free_names, nodes, in_use=names_in_use(collector_url), state_dir=state_dir)
    fleet, message = _fleet(nodes, gpus_per_node, model_names, seed, replay, script, names)

    lost = 0

    async def main(stop: asyncio.Event) -> None:
        nonlocal lost
        until = f"for {duration_s:g} s" if duration_s else "until Ctrl-C"
        say(f"{message} {until}")
        say(f"shipping to {collector_url}")
        clock = SystemClock()
        with progress("simulating", duration_s) as bar:
            counters = await run_fleet(
                fleet,
                collector_url=collector_url,
                clock=clock,
                stop=stop,
                duration_s=duration_s,
                history_s=history_s,
                state_dir=state_dir,
                settings=settings,
                timing=timing,
                on_counters=_shown_by(bar, clock),
            )
        _say_counts(counters)
        if counters.spool_batches and state_dir is not None:
            say(f"{counted(counters.spool_batches, 'batch')} wait in {state_dir}")
        elif counters.spool_batches:
            lost = counters.spool_batches

    code = run_until_signalled(main)
    if lost:
        print(
            f"gpuwarden: the collector has not taken {counted(lost, 'batch')}, and spools in memory"
            " end here; --state-dir keeps them",
            file=sys.stderr,
        )
        return 1
    return code
