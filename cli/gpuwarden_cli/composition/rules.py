"""Runs rules, incidents, diagnosis, backtests and notifications beside a collector.

The collector listens before the rules have started: until then they answer 503, and nothing is judged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from aiohttp.web import AbstractRouteDef

from gpuwarden.alert import Alert
from gpuwarden.clock import Clock
from gpuwarden.data_folder import POLICIES
from gpuwarden.judgement import NOT_STARTED, Judgement, JudgementState
from gpuwarden.lifecycle import StartError
from gpuwarden.query import ExpectedQuery, Querier
from gpuwarden_cli.composition.notifications import Notifications
from gpuwarden_cli.settings import rule_set_of
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.ops.health import Duties
from gpuwarden_collector.ops.readiness import RulesProgress
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_rules.backtest.run import Backtester
from gpuwarden_rules.definition.yaml_positions import RuleFileError, yaml_files
from gpuwarden_rules.diagnosis import observe
from gpuwarden_rules.diagnosis.service import Diagnoser
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.reload import RuleReloader
from gpuwarden_rules.http import routes as rules_routes
from gpuwarden_rules.incidents.service import IncidentService
from gpuwarden_rules.notify.handover import Handover
from gpuwarden_rules.notify.silence_share import SilenceShare
from gpuwarden_rules.policies.case_store import CaseStore, CaseStoreError
from gpuwarden_rules.policies.language import Policy, load_policies
from gpuwarden_rules.policies.service import PolicyService

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningRules:
    """What evaluates the rows of a collector."""

    engine: RuleEngine
    reloader: RuleReloader
    incidents: IncidentService
    diagnoser: Diagnoser
    backtester: Backtester
    policies: PolicyService | None
    share: SilenceShare | None
    handover: Handover | None
    """None, as `share`: this collector has its lake alone."""
    claim: Callable[[str], Awaitable[bool]]


class RuleServices:
    """Rules and notifications of a collector: `start` them once it listens, then `run` them."""

    def __init__(
        self, settings: CollectorSettings, clock: Clock, on_change: Callable[[Alert], None]
    ) -> None:
        """Read the rules, and the file of receivers. Raises StartError."""
        self._clock = clock
        self._on_change = on_change
        self._folders = settings.rules_dirs
        self._rule_set = rule_set_of(settings.rules_dirs)
        self._notifications = Notifications(settings.notify_file, settings.data_dir, clock)
        self._settings = settings
        self._policies = self._read_policies()
        self._running: RunningRules | None = None
        self._begun_at: datetime | None = None

    def start(self, collector: Collector) -> None:
        """Build them on a collector; it serves them from now on."""
        clock, notifications = self._clock, self._notifications
        engine = self._engine_of(collector)
        collector.events.listen(engine.wake)
        policies = self._policies_of(collector, engine)
        again = (notifications.reload, collector.take_prices, self._reload_policies)
        reloader = RuleReloader(engine, self._folders, again)
        incidents = IncidentService(
            lambda: engine.alerts if engine.is_running else None,
            lambda: engine.all_rules,
            collector.incidents,
            collector.rules_querier,
            clock,
            notifications.wake,
        )
        diagnoser = Diagnoser(collector.background, collector.diagnoses, clock)
        # A person waits for a backtest, so it has the querier of people.
        backtester = Backtester(collector.querier, clock)
        is_shared = self._settings.catalog is not None
        cluster = collector.cluster
        share = SilenceShare(cluster, engine, clock) if is_shared else None
        handover = (
            Handover(
                cluster,
                engine,
                notifications,
                collector.background,
                clock,
                lambda: engine.is_running,
            )
            if is_shared
            else None
        )
        self._begun_at = clock.now()
        self._running = RunningRules(
            engine,
            reloader,
            incidents,
            diagnoser,
            backtester,
            policies,
            share,
            handover,
            collector.cluster.claim,
        )

    async def run(self, querier: Querier, reload: asyncio.Event, stop: asyncio.Event) -> None:
        """Run them until `stop`; when `reload` is set, read rules, receivers and prices again."""
        running, notifications = self._running, self._notifications
        assert running is not None, "start comes first"
        if running.handover is not None:
            await running.handover.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(running.engine.run(stop), name="rules")
            group.create_task(running.diagnoser.run(stop), name="diagnosis")
            group.create_task(running.incidents.run(stop), name="incidents")
            group.create_task(running.backtester.run(stop), name="backtests")
            group.create_task(
                notifications.run(running.incidents, querier, stop, running.claim),
                name="notify",
            )
            if running.policies is not None:
                group.create_task(running.policies.run(stop), name="policies")
            if running.share is not None:
                group.create_task(running.share.run(stop), name="silences of the cluster")
            if running.handover is not None:
                group.create_task(running.handover.run(stop), name="handover")
            reloading = group.create_task(running.reloader.reload_whenever(reload), name="reload")
            await stop.wait()
            reloading.cancel()

    def routes(self, querier: Querier) -> Iterable[AbstractRouteDef]:
        """The HTTP routes of the rules."""
        return rules_routes.routes(
            lambda: self._running.reloader if self._running else None,
            querier,
            self._clock,
            lambda: self._running.backtester if self._running else None,
            self._wake_incidents,
            lambda: self._running.policies if self._running else None,
        )

    def _read_policies(self) -> list[Policy]:
        """Raises StartError."""
        path = self._settings.policies_path
        if path is None:
            return []
        try:
            return load_policies(
                yaml_files([path], tests=False), [rule.name for rule in self._rule_set.rules]
            )
        except (RuleFileError, OSError) as error:
            raise StartError(f"policies_path: {error}") from error

    async def _reload_policies(self) -> str | None:
        """Read the policies again; the problem, if there is one: then the old ones hold."""
        if self._running is None or self._running.policies is None:
            return None
        try:
            self._running.policies.policies = await asyncio.to_thread(self._read_policies)
        except StartError as error:
            log.error("policies not reloaded; the old ones hold", extra={"problem": str(error)})
            return str(error)
        return None

    def _policies_of(self, collector: Collector, engine: RuleEngine) -> PolicyService | None:
        if self._settings.policies_path is None:
            return None
        try:
            store = CaseStore(self._settings.data_dir / POLICIES)
        except CaseStoreError as error:
            raise StartError(str(error)) from error

        return PolicyService(
            self._policies,
            store,
            lambda: engine.alerts if engine.is_running else None,
            collector.background,
            self._clock,
            self._notifications,
            link=self._notifications.link,
            records=collector.policy_records,
        )

    def judgement(self) -> Judgement:
        """How far the rules have judged the fleet."""
        return self._running.engine.judgement if self._running else NOT_STARTED

    def metrics(self) -> str:
        """Prometheus text of rules, diagnosis and notifications."""
        from gpuwarden_rules.exposition import (
            rules_exposition,  # with a library that only a scrape needs
        )

        running = self._running
        stats = running.engine.stats if running else {}
        diagnoser = running.diagnoser if running else None
        view = running.incidents.view if running else None
        incidents = view.incidents if view else ()
        figures = rules_exposition(stats, self._clock.now(), diagnoser, incidents)
        return figures + self._notifications.figures()

    def duties(self) -> Duties:
        """What rules and notifications do, for the collector's health."""
        judgement = self.judgement()
        about = Duties(
            receivers_failing=self._notifications.failing(),
            messages_waiting=self._notifications.waiting(),
            unjudged=None if judgement.state is JudgementState.YES else judgement.sentence,
        )
        if self._running is None:
            return about
        rules, stats = self._running.engine.rules, self._running.engine.stats
        times = ((stats[rule.name].last_seconds or 0.0, rule.interval_s) for rule in rules)
        return replace(
            about,
            rules=len(stats),
            progress=self._progress(),
            rules_failing=tuple(name for name, one in stats.items() if one.failing_since),
            rules_slow=tuple((took_s, most_s) for took_s, most_s in times if took_s > most_s),
        )

    def _progress(self) -> RulesProgress | None:
        """How far the rules are; None: there are none."""
        if self._running is None or self._begun_at is None or not self._running.engine.rules:
            return None
        ended = [one.last_success_at for one in self._running.engine.stats.values()]
        newest = max((at for at in ended if at is not None), default=None)
        shortest_s = min(rule.interval_s for rule in self._running.engine.rules)
        return RulesProgress(self._begun_at, newest, shortest_s)

    def _engine_of(self, collector: Collector) -> RuleEngine:
        def expect(queries: Sequence[ExpectedQuery]) -> None:
            collector.expect([*queries, observe.expected(self._clock.now())])

        def changed(alert: Alert) -> None:
            self._wake_incidents()
            self._on_change(alert)

        return RuleEngine(
            self._rule_set.rules,
            collector.rules_querier,
            collector.alerts,
            self._clock,
            background=collector.background,
            lag_s=lambda: collector.stats.ingest_lag_seconds,
            overrides=self._rule_set.overrides,
            on_change=changed,
            expect=expect,
        )

    def _wake_incidents(self) -> None:
        if self._running:
            self._running.incidents.wake()
