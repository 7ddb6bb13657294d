"""`gpuwarden up`: collector, rules, page and this host's agent in one process, for the first minute
with the product. What has no GPU gets simulated ones beside it, marked as such."""

import asyncio
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden import lifecycle, logs
from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden.settings import load
from gpuwarden_cli.output import counted
from gpuwarden_cli.services import SIMULATOR_MISSING, collecting, run_until_signalled, say

if TYPE_CHECKING:
    from gpuwarden_agent.collect.discovery import Discovery
    from gpuwarden_collector.daemon import Collector

HISTORY_S = 2 * 3600
SIMULATED_GPUS = 8
GPUS_PER_NODE = 8
SIMULATED_SEED = 1
ALERTS_SAID_MAX = 20


def default_data_dir() -> Path:
    """`$XDG_DATA_HOME/gpuwarden`, by default `~/.local/share/gpuwarden`."""
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "gpuwarden"


def run_up(*, port: int, data: Path, simulate: int | None, model_name: str) -> int:
    """Run until Ctrl-C. `simulate`: GPUs to simulate; None: some when the host has none."""
    from gpuwarden_collector.processes.footprint import keep_small

    keep_small()
    from gpuwarden_agent.collect.discovery import discover
    from gpuwarden_collector.settings import CollectorSettings

    logs.setup("warning")
    try:
        model_named(model_name)
    except ValueError as error:
        raise lifecycle.StartError(f"--model: {error}") from error
    base = load(CollectorSettings, "collector").settings
    # Whatever the environment says of a collector for others, this one is this machine's own.
    settings = replace(
        base,
        host="127.0.0.1",
        port=port,
        data_dir=data,
        tls_cert=None,
        tls_key=None,
        require_tokens=False,
        rule_processes=1,  # enough for one machine's GPUs, and a process is 60 MiB
    )
    # Before the event loop: a driver can take its time to load.
    found = discover("auto")
    gpus = simulated_gpus(simulate, found.gpus)
    if gpus and find_spec("gpuwarden_simulator") is None:
        if simulate is not None:
            raise lifecycle.StartError(SIMULATOR_MISSING)
        say(SIMULATOR_MISSING)
        gpus = 0

    async def main(stop: asyncio.Event) -> None:
        voice = AlertPrinter()
        async with collecting(settings, SystemClock(), on_change=voice.on_change) as collector:
            await _watch(collector, data, found, gpus, model_name, stop)
            say("\nstopping: storing what is left")
        stored = collector.stats.rows_total
        say(f"stopped; {stored:,} samples of this run are in {data}")

    return run_until_signalled(main)


async def _watch(
    collector: "Collector",
    data: Path,
    found: "Discovery",
    gpus: int,
    model_name: str,
    stop: asyncio.Event,
) -> None:
    """This host's agent and the simulated nodes, until `stop`."""
    from gpuwarden_agent import daemon
    from gpuwarden_agent.settings import AgentSettings

    clock = SystemClock()
    agent = replace(
        load(AgentSettings, "agent").settings,
        collector_url=collector.url,
        token_file=None,
        state_dir=data / "agent",
    )
    sizes = node_sizes(gpus)
    _greet(
        collector.url, data, found.message, gpus, len(sizes), agent.node_name, collector.postgres
    )
    firing = [a for a in await collector.alerts.active() if a.state is AlertState.FIRING]
    if firing:
        say(f"{counted(len(firing), 'alert')} from an earlier run: `gpuwarden alerts list`\n")
    async with asyncio.TaskGroup() as group:
        group.create_task(
            daemon.run(
                agent,
                clock,
                stop,
                probes=found.all_probes(agent.state_dir, clock),
                rediscover=found.rediscover,
            ),
            name="agent of this host",
        )
        if sizes:
            from gpuwarden_simulator import fleet_nodes
            from gpuwarden_simulator.fleet import run_fleet

            group.create_task(
                run_fleet(
                    fleet_nodes(sizes, model_named(model_name), SIMULATED_SEED),
                    collector_url=collector.url,
                    clock=clock,
                    stop=stop,
                    state_dir=data / "simulated",
                    history_s=HISTORY_S,
                ),
                name="simulated nodes",
            )


def simulated_gpus(asked: int | None, real: int) -> int:
    """How many GPUs to simulate: as asked, else some where the host has none."""
    if asked is not None:
        return asked
    return 0 if real else SIMULATED_GPUS


def node_sizes(gpus: int) -> list[int]:
    """GPUs of each simulated node: full ones, and one with the rest."""
    full, rest = divmod(gpus, GPUS_PER_NODE)
    return [GPUS_PER_NODE] * full + [rest] * bool(rest)


def _greet(
    url: str,
    data: Path,
    found: str,
    gpus: int,
    nodes: int,
    node: str,
    postgres: tuple[str, int] | None,
) -> None:
    at = "" if url.endswith(":8750") else f"GPUWARDEN_URL={url} "
    say(f"gpuwarden is up: {url}")
    say(f"  watching   {node} (this host): {found}")
    if gpus:
        say(
            f"             {counted(gpus, 'simulated GPU')} on {counted(nodes, 'node')}, with the last"
            " two hours; their rows are marked simulated"
        )
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
    """Says alerts as they fire and resolve: the first with what to do, then a line each, then no more."""

    def __init__(self) -> None:
        self._said = 0
        self._states: dict[str, AlertState] = {}

    def on_change(self, alert: Alert) -> None:
        """Called by the rules engine at each change of an alert's state."""
        if alert.fired_at is None or self._said > ALERTS_SAID_MAX:
            return  # it is pending, or was and is over
        if self._states.get(alert.fingerprint) is alert.state:
            return  # it is muted now, or no more
        self._states[alert.fingerprint] = alert.state
        self._said += 1
        if self._said > ALERTS_SAID_MAX:
            say("… and so on: `gpuwarden alerts list`")
            return
        simulated = " (simulated)" if alert.simulated else ""
        say(f"{alert.state.value.upper()} {alert.severity.value}: {alert.summary}{simulated}")
        if self._said == 1 and alert.state is AlertState.FIRING:
            say(f"  what to do: {' '.join(alert.remedy.split())}")
