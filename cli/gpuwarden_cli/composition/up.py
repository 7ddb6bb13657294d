"""Composes `gpuwarden up`: collector, rules, page and this host's agent in one process.

A host without GPUs gets simulated ones beside it; their rows are marked as simulated.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from gpuwarden import logs
from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.models import GpuModel, models_named
from gpuwarden.settings import load
from gpuwarden_agent import daemon
from gpuwarden_agent.collect.discovery import Discovery, discover
from gpuwarden_agent.collect.progress.probe import progress_probes
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_cli.composition.fleet_plan import FleetPlan, planned, planned_mixed, simulated_lines
from gpuwarden_cli.composition.supervision import SIMULATOR_MISSING, run_until_signalled, say
from gpuwarden_cli.output import counted
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_rules.definition.templates import usd

SIMULATED_GPUS = 8
SIMULATED_SEED = 1
ALERTS_SAID_MAX = 20


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/gpuwarden`, by default `~/.local/share/gpuwarden`."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "gpuwarden"


def run_up(
    *,
    port: int,
    data: Path,
    simulate: int | Literal["mixed"] | None,
    model_names: str,
    history: int | None = None,
) -> int:
    """Run until Ctrl-C. `simulate`: GPUs to simulate; None: SIMULATED_GPUS when the host has no GPU; "mixed": nodes of
    several vendors. `model_names`: separated by commas. `history`: seconds of past that they begin with; None: as
    `planned` says.
    """
    logs.setup("warning")
    models = _models(model_names)
    settings = _collector_settings(port, data)
    # Before the event loop, as a driver may load slowly.
    found = discover("auto")
    if simulate == "mixed":
        fleet = planned_mixed(history)
    else:
        fleet = planned(simulated_gpus(simulate, found.gpus), history, models)
    if fleet.sizes and find_spec("gpuwarden_simulator") is None:
        if simulate is not None:
            raise StartError(SIMULATOR_MISSING)
        say(SIMULATOR_MISSING)
        fleet = planned(0)

    async def main(stop: asyncio.Event) -> None:
        clock, printer = SystemClock(), AlertPrinter()
        # One process of rules is enough for one machine's GPUs, and takes 60 MiB.
        async with collecting(
            settings, clock, on_change=printer.on_change, rule_processes=1
        ) as collector:
            agent = _agent_settings(collector.url, data)
            _greet(collector, data, f"{agent.node_name} (this host): {found.message}", fleet)
            await _say_firing(collector)
            async with asyncio.TaskGroup() as group:
                group.create_task(_run_agent(agent, found, clock, stop), name="agent of this host")
                if fleet.sizes:
                    simulating = _simulate(fleet, collector.url, data, clock, stop)
                    group.create_task(simulating, name="simulated nodes")
            say("\nstopping: storing what is left")
        stored = collector.stats.rows_total
        say(f"stopped; {stored:,} samples of this run are in {data}")

    return run_until_signalled(main)


def _models(names: str) -> Sequence[GpuModel]:
    try:
        return models_named(names)
    except ValueError as error:
        raise StartError(f"--model: {error}") from error


def _collector_settings(port: int, data: Path) -> CollectorSettings:
    """The collector's settings of the environment, restricted to this host."""
    return replace(
        load(CollectorSettings, "collector").settings,
        host="127.0.0.1",
        port=port,
        data_dir=data,
        tls_cert=None,
        tls_key=None,
        require_tokens=False,
    )


def _agent_settings(url: str, data: Path) -> AgentSettings:
    return replace(
        load(AgentSettings, "agent").settings,
        collector_url=(url,),
        token_file=None,
        state_dir=data / "agent",
    )


async def _say_firing(collector: Collector) -> None:
    firing = [a for a in await collector.alerts.active() if a.state is AlertState.FIRING]
    if firing:
        say(f"{counted(len(firing), 'alert')} from an earlier run: `gpuwarden alerts list`\n")


async def _run_agent(
    settings: AgentSettings, found: Discovery, clock: Clock, stop: asyncio.Event
) -> None:
    probes = [*found.all_probes(settings.state_dir, clock), *progress_probes(settings, clock)]
    await daemon.run(settings, clock, stop, probes=probes, rediscover=found.rediscover)


async def _simulate(
    plan: FleetPlan, url: str, data: Path, clock: Clock, stop: asyncio.Event
) -> None:
    from gpuwarden_simulator import fleet_nodes
    from gpuwarden_simulator.fleet import run_fleet

    await run_fleet(
        fleet_nodes(plan.sizes, plan.models, SIMULATED_SEED),
        collector_url=url,
        clock=clock,
        stop=stop,
        state_dir=data / "simulated",
        history_s=plan.history_s,
        settings=AgentSettings(backend="simulator", interval_s=plan.interval_s),
    )


def simulated_gpus(asked: int | None, real: int) -> int:
    """Number of GPUs to simulate: `asked`, else SIMULATED_GPUS when the host has no GPU."""
    if asked is not None:
        return asked
    return 0 if real else SIMULATED_GPUS


def _greet(collector: Collector, data: Path, watched: str, fleet: FleetPlan) -> None:
    """Say what runs, where its data is, and what to type next."""
    url, postgres = collector.url, collector.postgres
    at = "" if url.endswith(":8750") else f"GPUWARDEN_URL={url} "
    say(f"gpuwarden is up: {url}")
    say(f"  watching   {watched}")
    if fleet.sizes:
        for line in simulated_lines(fleet):
            say(f"             {line}")
    say(f"  data in    {data}")
    say("  ask        from another shell:")
    say(
        f'             {at}gpuwarden sql "select node, gpu, util_percent, power_watts from'
        ' gpu_samples order by ts desc limit 8"'
    )
    say(f"             {at}gpuwarden alerts list")
    if postgres is not None:
        say(f"             psql -h {postgres[0]} -p {postgres[1]} -U gpuwarden gpuwarden")
    say("  stop       Ctrl-C; nothing is lost")
    say()


class AlertPrinter:
    """Prints alerts as they fire and resolve: the first with its remedy, others as a line, at most ALERTS_SAID_MAX."""

    def __init__(self) -> None:
        self._said = 0
        self._states: dict[str, AlertState] = {}

    def on_change(self, alert: Alert) -> None:
        """Print the new state of an alert."""
        if alert.fired_at is None or self._said > ALERTS_SAID_MAX:
            return  # it is pending, or never fired
        if self._states.get(alert.fingerprint) is alert.state:
            return  # only its muting has changed
        self._states[alert.fingerprint] = alert.state
        self._said += 1
        if self._said > ALERTS_SAID_MAX:
            say("… and so on: `gpuwarden alerts list`")
            return
        simulated = " (simulated)" if alert.simulated else ""
        spent = alert.usd_so_far(alert.seen_at)
        cost = ""
        if alert.usd_per_hour is not None and spent is not None:
            cost = f" {usd(spent)} so far, {usd(alert.usd_per_hour)}/h."
        head = f"{alert.state.value.upper()} {alert.severity.value}"
        say(f"{head}: {alert.summary}{cost}{simulated}")
        if self._said == 1 and alert.state is AlertState.FIRING:
            say(f"  what to do: {' '.join(alert.remedy.split())}")
