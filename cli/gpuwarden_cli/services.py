"""Long-running commands: `collector run`, `agent run`, `simulate`. Composes the parts and stops them
in order: sources first, then rules, then the store."""

import asyncio
import itertools
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwarden import lifecycle, logs
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.judgement import NOT_STARTED, Judgement, JudgementState
from gpuwarden.settings import SettingsError, changed
from gpuwarden_cli.output import counted
from gpuwarden_cli.progress import progress

if TYPE_CHECKING:
    from aiohttp.web import AbstractRouteDef

    from gpuwarden.alert import Alert
    from gpuwarden.query import ExpectedQuery, Querier
    from gpuwarden_agent.counters import Counters
    from gpuwarden_agent.probe import Probe
    from gpuwarden_agent.sampling.rediscovery import Rediscovery
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_cli.notifications import Notifications
    from gpuwarden_cli.progress import ProgressLine
    from gpuwarden_collector.daemon import Collector
    from gpuwarden_collector.ops.health import Duties
    from gpuwarden_collector.query.port import Front
    from gpuwarden_collector.settings import CollectorSettings
    from gpuwarden_rules.backtest.run import Backtester
    from gpuwarden_rules.definition.rule_set import RuleSet
    from gpuwarden_rules.diagnosis.service import Diagnoser
    from gpuwarden_rules.evaluation.engine import RuleEngine
    from gpuwarden_rules.evaluation.reload import RuleReloader
    from gpuwarden_rules.incidents.service import IncidentService

log = logging.getLogger(__name__)

LOGGING = frozenset({"log_level", "log_format"})
"""Settings of the collector that take effect on a reload; the files that others name are read again."""

SIMULATOR_MISSING = (
    "simulated devices, recordings and their replay are not installed here, since a GPU host does not"
    " need them: pip install 'gpuwarden[simulator]' in an environment of your own"
)


def say(line: str = "") -> None:
    """A line for the person who started the command, at once also through a pipe."""
    print(line, flush=True)


def run_until_signalled(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run `main(stop)`; SIGTERM and Ctrl-C set `stop`."""

    async def body() -> None:
        stop = asyncio.Event()
        lifecycle.stop_on_signals(stop)
        await main(stop)

    asyncio.run(body())
    return 0


@asynccontextmanager
async def collecting(
    settings: "CollectorSettings",
    clock: Clock,
    *,
    on_change: "Callable[[Alert], None]" = lambda alert: None,
    reload: asyncio.Event | None = None,
) -> "AsyncIterator[Collector]":
    """A collector with rules and page while the block runs; `reload`, when set, has rules, receivers
    and prices read anew. Raises StartError."""
    from gpuwarden_cli.mcp.http import McpEndpoint
    from gpuwarden_cli.notifications import Notifications
    from gpuwarden_collector.daemon import running
    from gpuwarden_dashboards.routes import routes as page_routes
    from gpuwarden_rules.backtest.run import Backtester
    from gpuwarden_rules.diagnosis.service import Diagnoser
    from gpuwarden_rules.evaluation.reload import RuleReloader
    from gpuwarden_rules.http import routes as rules_routes

    rule_set = rule_set_of(settings.rules_dirs)
    notifications = Notifications(settings.notify_file, settings.data_dir, clock)
    parts = _Parts()
    assistants = McpEndpoint(clock, parts.judgement)

    def changed(alert: "Alert") -> None:
        parts.wake()
        on_change(alert)

    def routes(querier: "Querier") -> "list[AbstractRouteDef]":
        of_rules = rules_routes.routes(
            lambda: parts.reloader, querier, clock, lambda: parts.backtester, parts.wake
        )
        pages = page_routes(querier, clock, parts.judgement)
        return [*pages, *assistants.routes(querier), *of_rules]

    async with running(
        settings,
        clock,
        routes=routes,
        more_metrics=lambda: _figures(parts, notifications, clock),
        duties=partial(_duties, parts, notifications),
        front=_front(settings),
    ) as collector:
        stop_rules, beside = asyncio.Event(), collector.beside
        engine = _engine_of(rule_set, collector, clock, changed)
        collector.events.listen(engine.wake)
        also = (notifications.reload, collector.take_prices)
        reloader = parts.reloader = RuleReloader(engine, settings.rules_dirs, also)
        incidents = parts.incidents = _incidents_of(engine, collector, clock, notifications.wake)
        diagnoser = parts.diagnoser = Diagnoser(beside, collector.diagnoses, clock)
        # People wait for it, rules do not.
        backtester = parts.backtester = Backtester(collector.querier, clock)
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.run(stop_rules), name="rules")
            group.create_task(diagnoser.run(stop_rules), name="diagnosis")
            group.create_task(incidents.run(stop_rules), name="incidents")
            group.create_task(backtester.run(stop_rules), name="backtests")
            group.create_task(notifications.run(incidents, beside, stop_rules), name="notify")
            group.create_task(assistants.run(stop_rules), name="assistants")
            reloading = group.create_task(
                reloader.reload_whenever(reload or asyncio.Event()), name="reload"
            )
            try:
                yield collector
            finally:
                reloading.cancel()
                stop_rules.set()


def _front(settings: "CollectorSettings") -> "Front | None":
    """PostgreSQL's protocol, where it is asked for."""
    if settings.postgres_port is None:
        return None
    from gpuwarden_postgres.front import POSTGRES

    return POSTGRES


@dataclass(slots=True)
class _Parts:
    """What runs beside the collector, once it has started."""

    reloader: "RuleReloader | None" = None
    diagnoser: "Diagnoser | None" = None
    incidents: "IncidentService | None" = None
    backtester: "Backtester | None" = None

    def wake(self) -> None:
        """Have incidents look at alerts."""
        if self.incidents:
            self.incidents.wake()

    def judgement(self) -> Judgement:
        """How far the rules have judged the fleet."""
        return self.reloader.engine.judgement if self.reloader else NOT_STARTED


def _figures(parts: _Parts, notifications: "Notifications", clock: Clock) -> str:
    """What /metrics has of rules, diagnosis and notifications."""
    from gpuwarden_rules.exposition import rules_exposition

    stats = parts.reloader.engine.stats if parts.reloader else {}
    return rules_exposition(stats, clock.now(), parts.diagnoser) + notifications.figures()


def _engine_of(
    rule_set: "RuleSet",
    collector: "Collector",
    clock: Clock,
    on_change: "Callable[[Alert], None]",
) -> "RuleEngine":
    from gpuwarden_rules.diagnosis import observe
    from gpuwarden_rules.evaluation.engine import RuleEngine

    def expect(queries: "Sequence[ExpectedQuery]") -> None:
        collector.expect([*queries, observe.expected(clock.now())])

    return RuleEngine(
        rule_set.rules,
        collector.rules_querier,
        collector.alerts,
        clock,
        beside=collector.beside,
        lag_s=lambda: collector.stats.ingest_lag_seconds,
        overrides=rule_set.overrides,
        on_change=on_change,
        expect=expect,
    )


def _incidents_of(
    engine: "RuleEngine", collector: "Collector", clock: Clock, on_look: Callable[[], None]
) -> "IncidentService":
    from gpuwarden_rules.incidents.service import IncidentService

    return IncidentService(
        lambda: engine.alerts if engine.is_running else None,
        lambda: engine.all_rules,
        collector.incidents,
        collector.rules_querier,
        clock,
        on_look,
    )


def _duties(parts: _Parts, notifications: "Notifications") -> "Duties":
    """What rules and notifications are up to, for the collector's account of itself."""
    from gpuwarden_collector.ops.health import Duties

    kept = parts.reloader
    rules = kept.engine.stats if kept else {}
    failing = tuple(name for name, figures in rules.items() if figures.failing_since)
    every_s = {rule.name: rule.interval_s for rule in kept.engine.rules} if kept else {}
    slow = ((rules[name].last_seconds or 0.0, every_s[name]) for name in rules)
    judgement = parts.judgement()
    return Duties(
        len(rules) if kept else None,
        failing,
        notifications.failing(),
        notifications.waiting(),
        None if judgement.state is JudgementState.YES else judgement.sentence,
        tuple((took_s, most_s) for took_s, most_s in slow if took_s > most_s),
    )


def rule_set_of(folders: Sequence[Path]) -> "RuleSet":
    """The rules that would run. Raises StartError."""
    from gpuwarden_rules.definition.rule_set import load_rule_set
    from gpuwarden_rules.definition.yaml_positions import RuleFileError

    try:
        return load_rule_set(folders)
    except RuleFileError as error:
        more = len(error.problems) - 1
        rest = f" (and {counted(more, 'more problem')}: `gpuwarden rules check`)" if more else ""
        raise lifecycle.StartError(f"{error.problems[0]}{rest}") from error


def reread(running: "CollectorSettings", load: "Callable[[], CollectorSettings]") -> None:
    """Take up how to log, and name the settings that are others now and need a restart."""
    try:
        settings = load()
    except SettingsError as error:
        log.error(
            "settings not reloaded; the previous settings stay in force",
            extra={"problem": str(error)},
        )
        return
    logs.setup(settings.log_level, settings.log_format)
    later = [name for name in changed(running, settings) if name not in LOGGING]
    if later:
        log.warning("needs a restart", extra={"settings": ", ".join(later)})


def run_collector(settings: "CollectorSettings", load: "Callable[[], CollectorSettings]") -> int:
    """`gpuwarden collector run`; `load` reads the settings anew, on SIGHUP."""
    from gpuwarden_collector.processes.footprint import keep_small

    keep_small()
    logs.setup(settings.log_level, settings.log_format)

    async def main(stop: asyncio.Event) -> None:
        reload = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.set)
        async with collecting(settings, SystemClock(), reload=reload) as collector:

            def reload_all() -> None:
                reload.set()
                collector.reload()
                reread(settings, load)

            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_all)
            lifecycle.notify(f"READY=1\nSTATUS=listening on {collector.url}")
            async with asyncio.TaskGroup() as group:
                group.create_task(
                    lifecycle.feed_watchdog(stop, collector.is_alive), name="watchdog"
                )
                await stop.wait()
                lifecycle.notify("STOPPING=1")

    return run_until_signalled(main)


@dataclass(frozen=True, slots=True)
class Sources:
    """What an agent reads."""

    probes: "list[Probe]"
    message: str
    """One line on what they watch."""
    rediscover: "Rediscovery | None" = None
    """Gives probes of what comes later; None: nothing can."""


def probes_of(settings: "AgentSettings") -> "tuple[list[Probe], str]":
    """Probes that the settings ask for, and a line on what they watch. Raises StartError."""
    sources = sources_of(settings)
    return sources.probes, sources.message


def sources_of(settings: "AgentSettings") -> Sources:
    """What the settings ask for. Raises StartError."""
    from gpuwarden.models import model_named
    from gpuwarden_agent.collect.discovery import discover
    from gpuwarden_agent.collect.schedulers.slurm_jobs import slurm_probes

    if settings.backend == "replay":
        from gpuwarden_cli.commands.recordings import replayed

        return Sources(*replayed(settings))
    if settings.backend != "simulator":
        found = discover(
            settings.backend,
            node=settings.node_name,
            commands=settings.commands,
            pods=settings.pod_source,
        )
        probes = found.all_probes(settings.state_dir)
        slurm = slurm_probes(found.bus_ids, SystemClock(), controller=settings.slurm_controller)
        return Sources([*probes, *slurm], found.message, found.rediscover)
    from gpuwarden_simulator import SimulatedNode, load_script

    try:
        model = model_named(settings.simulate_model)
    except ValueError as error:
        raise lifecycle.StartError(f"simulate_model: {error}") from error
    name, gpus = settings.node_name, settings.simulate_gpus
    path = settings.simulate_script
    script = load_script(path, {name: gpus}, model).get(name, ()) if path else ()
    node = SimulatedNode(name, gpus, model, settings.simulate_seed, host=False, script=script)
    message = f"{settings.simulate_gpus} simulated {model.name} GPUs"
    slurm = slurm_probes(node.bus_ids(), SystemClock(), controller=settings.slurm_controller)
    return Sources([*discover("none").probes, node, *slurm], message)


def run_agent(settings: "AgentSettings", load: "Callable[[], AgentSettings]") -> int:
    """`gpuwarden agent run`; `load` reads the settings anew, on SIGHUP."""
    from gpuwarden_agent import daemon
    from gpuwarden_agent.reload import Reload

    # Until it can reload there is nothing to read anew, and nothing to die of.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logs.setup(settings.log_level, settings.log_format)
    # Before the event loop: a driver can take its time to load.
    sources = sources_of(settings)
    print(f"gpuwarden agent: {sources.message}", file=sys.stderr, flush=True)

    async def main(stop: asyncio.Event) -> None:
        reload = Reload(asyncio.Event(), load)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload.asked.set)
        await daemon.run(
            settings,
            SystemClock(),
            stop,
            probes=sources.probes,
            rediscover=sources.rediscover,
            reload=reload,
        )

    return run_until_signalled(main)


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
    """Nodes that agents send as now; none where the collector does not say."""
    from gpuwarden_client.http import CallError, ask, timestamp_param

    now = timestamp_param(SystemClock().now())
    try:
        return {row[0] for row in ask(_IN_USE, {"now": now}, url=url, timeout_s=10).rows}
    except CallError:
        return set()  # it may not be there yet, and refuses the second of two agents by itself


def free_names(
    count: int, name_of: Callable[[int], str], in_use: Collection[str], state_dir: Path | None
) -> list[str]:
    """The first names that no other agent sends as; those whose spool is in `state_dir` are its own."""
    free = (
        name
        for name in map(name_of, itertools.count())
        if name not in in_use or (state_dir is not None and (state_dir / name).exists())
    )
    return list(itertools.islice(free, count))


def _fleet(
    nodes: int,
    gpus_per_node: int,
    model_name: str,
    seed: int,
    replay: Path | None,
    script: Path | None,
    names: Callable[[Callable[[int], str]], list[str]],
) -> "tuple[Sequence[tuple[str, Probe | Sequence[Probe]]], str]":
    """The nodes of a fleet by name, and a line on them; `names`: those that are free, of such a form.
    Raises StartError."""
    from gpuwarden.models import model_named
    from gpuwarden_cli.commands.recordings import replay_nodes
    from gpuwarden_simulator import fleet_name, fleet_nodes, load_script
    from gpuwarden_simulator.recordings.replay import replay_name

    if replay is not None:
        if script is not None:
            raise lifecycle.StartError("--script: faults are for simulated nodes, not for --replay")
        return replay_nodes(replay, names(replay_name))
    try:
        model = model_named(model_name)
    except ValueError as error:
        raise lifecycle.StartError(f"--model: {error}") from error
    message = f"simulating {counted(nodes, 'node')} with {gpus_per_node} {model.name} each"
    sizes = {fleet_name(number): gpus_per_node for number in range(nodes)}
    faults = load_script(script, sizes, model) if script else {}
    called = names(fleet_name)
    if called != [*sizes]:
        span = called[0] if nodes == 1 else f"{called[0]} to {called[-1]}"
        message += f", called {span} as other agents send as sim-0001 and on,"
    return fleet_nodes([*sizes.values()], model, seed, faults, called), message


def _shown_by(bar: "ProgressLine", clock: Clock) -> "Callable[[Counters], None]":
    began_s = clock.monotonic()

    def shown(counters: "Counters") -> None:
        bar.done = clock.monotonic() - began_s
        bar.text = f"{counters.rows.total():,} rows, {counters.spool_batches:,} batches wait"

    return shown


def _say_counts(counters: "Counters") -> None:
    say(
        f"{counted(counters.batches_acknowledged, 'batch')} of {counters.batches_sealed:,} with"
        f" {counters.rows.total():,} rows are at the collector;"
        f" {counted(counters.ticks_missed, 'tick')} missed"
    )


def run_simulation(
    *,
    nodes: int,
    gpus_per_node: int,
    model_name: str,
    seed: int,
    collector_url: str,
    duration_s: float | None,
    history_s: int,
    state_dir: Path | None,
    replay: Path | None = None,
    script: Path | None = None,
) -> int:
    """`gpuwarden simulate`: a fleet of simulated nodes over the real wire; `replay`: all of them
    play this recording; `script`: faults of the simulated nodes. Raises StartError.
    """
    from gpuwarden_agent.settings import AgentSettings
    from gpuwarden_simulator.fleet import run_fleet

    logs.setup("warning")
    ca, token = os.environ.get("GPUWARDEN_CA"), os.environ.get("GPUWARDEN_TOKEN_FILE")
    settings = AgentSettings(
        backend="simulator",
        token_file=Path(token) if token else None,
        tls_ca=Path(ca) if ca else None,
    )
    if duration_s is not None and state_dir is None:
        # Who asked for so many seconds wants their rows; a collector may just be starting again.
        settings = replace(settings, stop_timeout_s=60)
    names = partial(free_names, nodes, in_use=names_in_use(collector_url), state_dir=state_dir)
    fleet, message = _fleet(nodes, gpus_per_node, model_name, seed, replay, script, names)

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
