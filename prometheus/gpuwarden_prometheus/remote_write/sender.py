"""Sends committed rows, and what the collector computes of them, to all receivers: the work of the forwarding process."""

import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import aiohttp

from gpuwarden.prometheus_names import DCGM_TABLES
from gpuwarden_collector.forwarding.port import (
    CommittedRows,
    Feed,
    Forwarding,
    ForwardingContext,
    ReceiverState,
)
from gpuwarden_prometheus.remote_write.bodies import BodyEncoder, requests_of
from gpuwarden_prometheus.remote_write.computed import COMPUTED_KINDS
from gpuwarden_prometheus.remote_write.delivery import ANSWER_S, HttpPost, RequestDelivery
from gpuwarden_prometheus.remote_write.minutes import MinuteSender, SourceQueries
from gpuwarden_prometheus.remote_write.samples import (
    LabelInventory,
    NodeTimes,
    Series,
    TableSeries,
    chosen_metrics,
)
from gpuwarden_prometheus.remote_write.settings import RemoteReceiver, load_receivers

SEND_S = 5.0
"""Interval at which new rows are sent: samples of one series that come together cost less."""
LOOK_S = 1.0
GC_OBJECTS = 100_000
"""Objects after which garbage is collected."""
INVENTORY_S = 15.0
"""Interval at which the inventory, which labels are made of, is read again."""

REMOTE_WRITE = Forwarding(load_receivers, "gpuwarden_prometheus.remote_write.sender:forward")


async def forward(context: ForwardingContext) -> None:
    """Send to every receiver, for ever."""
    # Each batch makes thousands of small objects that no cycle refers to.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 10, 10)
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        queries = SourceQueries(context, sum(bool(one.sources) for one in context.settings))
        for receiver in context.settings:
            sender = _Sender(receiver, context)
            group.create_task(sender.run(session), name=receiver.name)
            group.create_task(sender.watch(), name=f"{receiver.name} watch")
            if receiver.sources:
                name = f"{receiver.name} minutes"
                group.create_task(_send_minutes(receiver, context, queries, session), name=name)


async def _send_minutes(
    receiver: RemoteReceiver,
    context: ForwardingContext,
    queries: SourceQueries,
    session: aiohttp.ClientSession,
) -> None:
    state = context.states[receiver.name]
    encoder = BodyEncoder(receiver.version, COMPUTED_KINDS)
    post = await _post_to(receiver, session, state)
    delivery = RequestDelivery(receiver, post, encoder, state, context.clock)
    minutes = MinuteSender(receiver, context, queries, delivery)
    async with asyncio.TaskGroup() as group:
        group.create_task(minutes.run(), name=f"{receiver.name} minutes sent")
        group.create_task(minutes.watch(), name=f"{receiver.name} minutes watch")


async def _post_to(
    receiver: RemoteReceiver, session: aiohttp.ClientSession, state: ReceiverState
) -> HttpPost:
    """Wait until the files of certificates can be read."""
    while True:
        try:
            return HttpPost(receiver, session)
        except OSError as error:
            state.problem = f"tls_ca {receiver.tls_ca}: {error}"
            await asyncio.sleep(LOOK_S)


class _Sender:
    """Sends the rows of one feed to its receiver."""

    def __init__(self, receiver: RemoteReceiver, context: ForwardingContext) -> None:
        self._receiver = receiver
        self._context = context
        self._state = context.states[receiver.name]
        self._maker = SeriesMaker(receiver)
        self._feed = context.feed(receiver.name, frozenset(self._maker.tables))
        self._caught_up_s: float | None = None
        """When something began to wait; None: nothing waits."""

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Send what is committed, every SEND_S."""
        context, maker = self._context, self._maker
        encoder = BodyEncoder(self._receiver.version, maker.kinds)
        post = await _post_to(self._receiver, session, self._state)
        delivery = RequestDelivery(self._receiver, post, encoder, self._state, context.clock)
        inventory = _InventoryReader(context)
        maker.use(await inventory.read())
        await asyncio.to_thread(_follow_earlier, self._feed, maker)
        while True:
            rows = await asyncio.to_thread(self._feed.read)
            if rows is None:
                self._caught_up_s = None
                await asyncio.sleep(LOOK_S)
                continue
            if self._caught_up_s is None:
                self._caught_up_s = context.clock.monotonic()
            if inventory.is_due:
                maker.use(await inventory.read())
            await self._send(rows, delivery)
            if not rows.has_more:
                self._caught_up_s = None
                await asyncio.sleep(SEND_S)

    async def watch(self) -> None:
        """Keep the age of what waits."""
        while True:
            since_s = self._caught_up_s
            now_s = self._context.clock.monotonic()
            self._state.waiting_s = 0.0 if since_s is None else now_s - since_s
            await asyncio.sleep(LOOK_S)

    async def _send(self, rows: CommittedRows, delivery: RequestDelivery) -> None:
        requests = await asyncio.to_thread(self._maker.requests, rows)
        if requests:
            await asyncio.to_thread(self._feed.note_sending, rows)
        for request in requests:
            await delivery.deliver(request, is_repeated=rows.is_repeated)
        if unsendable := self._maker.unsendable:
            self._state.refused["time"] = unsendable
        await asyncio.to_thread(self._feed.confirm, rows)


def _follow_earlier(feed: Feed, maker: "SeriesMaker") -> None:
    for tables in feed.earlier():
        for _ in maker.series(tables):
            pass
    for _ in maker.ended():
        pass


class _InventoryReader:
    """Reads the inventory every INVENTORY_S."""

    def __init__(self, context: ForwardingContext) -> None:
        self._context = context
        self._read_s: float | None = None

    @property
    def is_due(self) -> bool:
        now_s = self._context.clock.monotonic()
        return self._read_s is None or now_s - self._read_s >= INVENTORY_S

    async def read(self) -> LabelInventory:
        self._read_s = self._context.clock.monotonic()
        nodes = await asyncio.to_thread(self._context.inventory, "nodes")
        gpus = await asyncio.to_thread(self._context.inventory, "gpus")
        return LabelInventory(
            {row["node"]: row for row in nodes}, {row["gpu_uuid"]: row for row in gpus}
        )


class SeriesMaker:
    """All series of one receiver."""

    def __init__(self, receiver: RemoteReceiver) -> None:
        chosen = chosen_metrics(receiver.names, receiver.is_wanted)
        # Of a name that two tables have, the values of the first one come first.
        order = [*DCGM_TABLES, *(table for table in chosen if table not in DCGM_TABLES)]
        times = NodeTimes()
        self.tables: Mapping[str, TableSeries] = {
            table: TableSeries(table, chosen[table], receiver.labels, times)
            for table in order
            if table in chosen
        }
        self.kinds = {m.exported.name: m.exported.kind for ms in chosen.values() for m in ms}

    def use(self, inventory: LabelInventory) -> None:
        """Take labels from this inventory from now on."""
        for table in self.tables.values():
            table.use(inventory)

    def series(self, tables: Mapping[str, Any]) -> Iterator[Series]:
        """Series of rows, by table."""
        for name, table in self.tables.items():
            if name in tables:
                yield from table.take(tables[name], self.tables)

    def ended(self) -> Iterator[Series]:
        """The ends of series."""
        for table in self.tables.values():
            yield from table.ended()

    def requests(self, rows: CommittedRows) -> list[Sequence[Series]]:
        """Requests with the samples of rows, and with the ends of series."""
        return list(requests_of(chain(self.series(rows.tables), self.ended())))

    @property
    def unsendable(self) -> int:
        """Samples whose time cannot be encoded."""
        return sum(table.unsendable for table in self.tables.values())
