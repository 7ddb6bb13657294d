"""Replays rules over the history of a collector, for backtests of rules and of policies."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union

from gpuwarden.clock import SystemClock
from gpuwarden.query import QueryError
from gpuwarden_cli.progress import progress
from gpuwarden_cli.read.remote import RemoteQuerier
from gpuwarden_cli.settings import collector_settings, rule_set_of
from gpuwarden_client.http import CallError

if TYPE_CHECKING:
    from gpuwarden_rules.backtest.inventory_history import NodeOutage
    from gpuwarden_rules.backtest.known_data import KnownData
    from gpuwarden_rules.backtest.replay import Replay
    from gpuwarden_rules.definition.language import Rule
    from gpuwarden_rules.definition.rule_set import RuleSet

Replayed: TypeAlias = Union["Replay", Exception, str]
"""A replay; why it failed; or which data the history lacks."""

_REPLAYS_AT_ONCE = 2
"""A collector runs four queries at a time by default; half are left to others."""
ROLLUPS_WAIT_S = 180.0
"""Longest wait for rollups of new samples, as after an import."""
ROLLUPS_POLL_S = 5.0


def rules_of_collector(args: argparse.Namespace) -> "RuleSet":
    """The rules of the collector's settings (`--config`), with its overrides. Raises StartError and RuleFileError."""
    return rule_set_of(collector_settings(args).rules_dirs)


async def replay_all(
    rule_set: "RuleSet",
    span: timedelta,
    step_s: float | None,
    url: str | None,
    show: Callable[[str, Replayed, float], None],
) -> timedelta | None:
    """Replay the rules over the last `span`, two at a time, and `show` each in order: name, result, seconds. The time
    that was replayed; None: there are no samples. Raises QueryError and CallError."""
    from gpuwarden_rules.backtest.inventory_history import outages_between
    from gpuwarden_rules.backtest.known_data import KnownData, reads_rollups
    from gpuwarden_rules.backtest.replay import first_sample_at
    from gpuwarden_rules.backtest.run import replay_or_reason
    from gpuwarden_rules.evaluation import fleet
    from gpuwarden_rules.evaluation.state import RowsError

    querier, clock = RemoteQuerier(url), SystemClock()
    until = clock.now()
    first = await first_sample_at(querier)
    if first is None:
        print("gpuwarden: the collector has no samples to replay", file=sys.stderr)
        return None
    since = max(until - span, first)
    places = await fleet.locations(querier) if rule_set.overrides else None
    turns = asyncio.Semaphore(_REPLAYS_AT_ONCE)
    known = KnownData(querier, since, until)
    unready = await _unready(known) if any(map(reads_rollups, rule_set.rules)) else None

    silences: list[Sequence[NodeOutage]] = []

    async def outages() -> "Sequence[NodeOutage]":
        if not silences:
            silences.append(await outages_between(querier, since, until))
        return silences[0]

    reached: dict[str, datetime] = {}

    def passed(name: str, at: datetime) -> None:
        reached[name] = at
        bar.done = sum((one - since) / (until - since) for one in reached.values())

    async def replayed(rule: "Rule") -> tuple[Replayed, float]:
        async with turns:
            began = clock.monotonic()
            try:
                done = await replay_or_reason(
                    rule, rule_set.overrides, places, known, unready, querier, since, until, clock,
                    outages=outages, step_s=step_s, on_progress=partial(passed, rule.name),
                )  # fmt: skip
            except (QueryError, RowsError, CallError) as error:
                return error, 0.0
            finally:
                passed(rule.name, until)
            return done, clock.monotonic() - began

    with progress("replaying", len(rule_set.rules)) as bar:
        async with asyncio.TaskGroup() as tasks:
            replays = {rule.name: tasks.create_task(replayed(rule)) for rule in rule_set.rules}
            for name, task in replays.items():
                done, seconds = await task
                bar.text = f"{name} done"
                with bar.paused():
                    show(name, done, seconds)
    return until - since


async def _unready(known: "KnownData") -> str | None:
    """Wait until the samples are rolled up; after ROLLUPS_WAIT_S a sentence that names the nodes without rollups."""
    from gpuwarden_rules.backtest.run import unready_text

    clock = SystemClock()
    deadline_s, is_told = clock.monotonic() + ROLLUPS_WAIT_S, False
    while nodes := await known.unready_nodes(clock.now()):
        if clock.monotonic() >= deadline_s:
            return unready_text(nodes)
        if not is_told:
            print(f"gpuwarden: waiting: {unready_text(nodes)}", file=sys.stderr)
            is_told = True
        await asyncio.sleep(ROLLUPS_POLL_S)
    return None
