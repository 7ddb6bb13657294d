"""Queries the rows of several rules at once.

Rules in the form that are about the same kind of subject and have one interval are a group: one SELECT a round. A rule that fails
in it is evaluated alone from then on, so that it is named and the others go on. Every other rule is a group of its own.
"""

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpuwarden.query import LakeAwayError, QueryError
from gpuwarden_rules.definition.form_group import GroupSelect, Member, kind_of, select_of
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Locations, OverridePlan, OverrideVariant
from gpuwarden_rules.evaluation.runtime import RuleRuntime
from gpuwarden_rules.evaluation.state import RowsError

log = logging.getLogger(__name__)

Rows = list[dict[str, Any]]
Query = Callable[[str, Mapping[str, Any]], Awaitable[Rows]]
"""Runs a SELECT with its parameters, without `now`. Raises QueryError, RowsError and TimeoutError."""


@dataclass(slots=True, eq=False)
class RuleGroup:
    """Rules that are evaluated together."""

    runtimes: Sequence[RuleRuntime]
    due: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_over: bool = False
    """The rules have changed, or the engine stops."""
    last_seconds: float | None = None
    alone: set[str] = field(default_factory=set)
    """Rules that failed in the SELECT of all."""
    woken_s: float = -math.inf
    """When an event last woke it, on the monotonic clock, or it began."""
    is_settled: bool = False
    """Its rules say nothing until an event of theirs is stored."""
    _compiled: tuple[Sequence[Member], GroupSelect] | None = None

    @property
    def name(self) -> str:
        """Its first rule, and how many there are."""
        more = len(self.runtimes) - 1
        return self.runtimes[0].rule.name + (f" and {more} more" if more else "")

    @property
    def interval_s(self) -> float:
        """Seconds between two rounds."""
        return min(runtime.rule.interval_s for runtime in self.runtimes)

    @property
    def on_events(self) -> frozenset[str]:
        """Kinds of events that wake it."""
        return frozenset(kind for runtime in self.runtimes for kind in runtime.rule.on_events)

    @property
    def is_of_events(self) -> bool:
        """Whether only an event can begin an alert of its rules."""
        return all(
            one.rule.form is not None
            and one.rule.form.kinds
            and not one.rule.form.expected
            and not one.overrides
            for one in self.runtimes
        )

    @property
    def has_alerts(self) -> bool:
        """Whether its rules have alerts, or any that are not saved or not replayed."""
        return any(
            one.state.alerts or one.unsaved or one.past is not None or not one.is_replayed
            for one in self.runtimes
        )

    def select(self, members: Sequence[Member]) -> GroupSelect:
        """The SELECT of its members, compiled once."""
        if self._compiled is None or self._compiled[0] != members:
            self._compiled = members, select_of(members)
        return self._compiled[1]

    @property
    def plain_sql(self) -> str:
        """Its SELECT without overrides."""
        if len(self.runtimes) == 1:
            return self.runtimes[0].rule.sql
        forms = [(one.rule.form, one.rule.params) for one in self.runtimes]
        return self.select([Member(form, params) for form, params in forms if form]).sql

    def bindings(self, now: datetime) -> dict[str, Any]:
        """Values of its parameters."""
        return self.runtimes[0].rule.bindings(now) if len(self.runtimes) == 1 else {"now": now}

    async def rows(
        self, runtimes: Sequence[RuleRuntime], places: Locations, query: Query
    ) -> dict[str, Rows | Exception]:
        """The rows of each of these rules, or why it has none. Raises LakeAwayError and TimeoutError, for all."""
        together = [runtime for runtime in runtimes if runtime.rule.name not in self.alone]
        rows: dict[str, Rows | Exception] = {}
        parts = sum(1 + len(one.overrides) for one in together if one.rule.form)
        if parts > 1:
            try:
                rows = await self._rows_together(together, places, query)
            except LakeAwayError:
                raise
            except (QueryError, RowsError) as error:
                log.debug(
                    "a group of rules fails", extra={"rules": self.name, "reason": str(error)}
                )
        left = [runtime for runtime in runtimes if runtime.rule.name not in rows]
        for runtime in left:
            try:
                rows[runtime.rule.name] = await rows_alone(runtime, places, query)
            except LakeAwayError:
                raise
            except (QueryError, RowsError) as error:
                rows[runtime.rule.name] = error
        failed = {name for name, of_rule in rows.items() if isinstance(of_rule, Exception)}
        # Where all fail the store does, and no rule is to blame.
        self.alone = failed if len(failed) < len(rows) else self.alone
        return rows

    async def _rows_together(
        self, runtimes: Sequence[RuleRuntime], places: Locations, query: Query
    ) -> dict[str, Rows | Exception]:
        plans = [runtime.plan(places) if runtime.overrides else None for runtime in runtimes]
        members = []
        owners: list[tuple[RuleRuntime, OverridePlan | None, OverrideVariant | None]] = []
        for runtime, plan in zip(runtimes, plans, strict=True):
            form, params = runtime.rule.form, runtime.rule.params
            assert form is not None, "a group of several has forms"
            for variant in plan.variants if plan else [None]:
                members.append(Member(form, params if variant is None else dict(variant.params)))
                owners.append((runtime, plan, variant))
        rows: dict[str, Rows | Exception] = {runtime.rule.name: [] for runtime in runtimes}
        if not members:
            return rows
        select = self.select(members)
        found = await query(select.sql, {})
        for number, (runtime, plan, variant) in enumerate(owners):
            own: Iterable[dict[str, Any]] = select.rows_of(number, found)
            if plan is not None and variant is not None:
                own = plan.own(variant, own)
            of_rule = rows[runtime.rule.name]
            assert isinstance(of_rule, list)
            of_rule.extend(own)
        return rows


async def rows_alone(runtime: RuleRuntime, places: Locations, query: Query) -> Rows:
    """The rows of a rule's own SELECT, each part of the fleet with its own parameters."""

    async def of(rule: Rule) -> Rows:
        names = rule.parameters - {"now"}
        return await query(rule.sql, {name: rule.params[name] for name in names})

    if not runtime.overrides:
        return await of(runtime.rule)
    return await runtime.plan(places).rows(of)


def groups_of(runtimes: Iterable[RuleRuntime]) -> list[RuleGroup]:
    """The groups of rules, in the order of their first rule."""
    groups: dict[Any, list[RuleRuntime]] = defaultdict(list)
    for runtime in runtimes:
        form = runtime.rule.form
        key = runtime.rule.name if form is None else (kind_of(form), runtime.rule.interval_s)
        groups[key].append(runtime)
    return [RuleGroup(members) for members in groups.values()]
