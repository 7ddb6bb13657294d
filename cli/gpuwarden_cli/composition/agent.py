"""Composes the agent: its sources (hardware, simulated devices or a recording) and its daemon."""

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.models import model_named
from gpuwarden.node_name import NodeNameError, check_node_name
from gpuwarden_agent import daemon
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.progress.probe import progress_probes
from gpuwarden_agent.collect.schedulers.slurm_jobs import slurm_probes
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.reload import Reload
from gpuwarden_agent.sampling.rediscovery import Rediscovery
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.composition.supervision import on_reload, run_until_signalled

SIMULATED_MODEL = "H100-SXM-80GB"
"""What backend simulator plays; `gpuwarden simulate --model` has all models and scripts of faults."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The probes of an agent."""

    probes: list[Probe]
    message: str
    """A line on what the probes read."""
    rediscover: Rediscovery | None = None
    """Finds devices that appear later; None: the backend has none."""


def sources_of(settings: AgentSettings, *, is_agent: bool = False) -> Sources:
    """The sources for the settings; `is_agent`: it keeps its position in the kernel's log. Raises StartError."""
    try:
        check_node_name(settings.node_name)
    except NodeNameError as error:
        raise StartError(f"node: {error}: give this host another name by setting node") from error
    if settings.backend == "replay":
        from gpuwarden_cli.composition.replay import replayed

        return Sources(*replayed(settings))
    if settings.backend != "simulator":
        found = discover(settings.backend, node=settings.node_name, settings=settings)
        probes = found.all_probes(settings.state_dir if is_agent else None)
        slurm = slurm_probes(found.bus_ids, SystemClock(), controller=settings.slurm_controller)
        progress = progress_probes(settings, SystemClock())
        return Sources([*probes, *slurm, *progress], found.message, found.rediscover)
    from gpuwarden_simulator import SimulatedNode

    model = model_named(SIMULATED_MODEL)
    node = SimulatedNode(settings.node_name, settings.simulate_gpus, model, 1, host=False)
    message = f"{settings.simulate_gpus} simulated {model.name} GPUs"
    slurm = slurm_probes(node.bus_ids(), SystemClock(), controller=settings.slurm_controller)
    progress = progress_probes(settings, SystemClock())
    return Sources([*discover("none").probes, node, *slurm, *progress], message)


def sources_beside(settings: AgentSettings) -> Sources:
    """The devices alone, for a command that shows or tests them. Raises StartError."""
    if settings.backend in ("simulator", "replay"):
        return sources_of(settings)
    found = discover(settings.backend, node=settings.node_name, settings=settings)
    return Sources(list(found.probes), found.message)


def run_agent(settings: AgentSettings, load: Callable[[], AgentSettings]) -> int:
    """Run `gpuwarden agent run`; `load` reads the settings again on SIGHUP."""
    # SIGHUP must not end a process that is still starting.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.setup(settings.log_level, settings.log_format)
    # Before the event loop, as a driver may load slowly.
    sources = sources_of(settings, is_agent=True)
    print(f"gpuwarden agent: {sources.message}", file=sys.stderr, flush=True)

    async def main(stop: asyncio.Event) -> None:
        reload = Reload(asyncio.Event(), load)
        on_reload(reload.asked.set)
        await daemon.run(
            settings,
            SystemClock(),
            stop,
            probes=sources.probes,
            rediscover=sources.rediscover,
            reload=reload,
        )

    return run_until_signalled(main)
