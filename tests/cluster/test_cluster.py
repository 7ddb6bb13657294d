"""Collectors of one lake, as processes that are killed: nothing lost, nothing twice."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.cluster.conftest import DEADLINE_S, Host, Postgres, post, streams, wait_for
from tests.end_to_end.conftest import Process
from zstandard import compress

from gpuwarden.clock import SystemClock
from gpuwarden.wire import BatchId
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import open_transport
from gpuwarden_agent.worker import Worker
from gpuwarden_client.http import CallError, ask, call
from gpuwarden_collector.storage.second_copy import CopyFolder

Hosts = Callable[..., list[Host]]
START = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
GPUS = 4


def body(sequence: int, node: str) -> bytes:
    """Five seconds of a node's GPUs, and an event."""
    instants = [START + timedelta(seconds=5 * sequence + second) for second in range(5)]
    samples = [
        {"ts": ts, "node": node, "gpu": gpu, "gpu_uuid": f"{node}-{gpu}", "simulated": True}
        for ts in instants
        for gpu in range(GPUS)
    ]
    event = {
        "ts": instants[0], "node": node, "simulated": True, "kind": "agent_start",
        "severity": "info", "message": f"batch {sequence}",
    }  # fmt: skip
    return streams({"gpu_samples": samples, "events": [event]})


def send(host: Host, sequence: int, node: str = "n1", *, again: bool = False) -> int | None:
    batch = BatchId(f"agent-{node}", "boot", sequence, 0, again)
    return post(host, batch, body(sequence, node))


COUNT_SQL = (
    "SELECT (SELECT count(*) FROM {0}gpu_samples), "
    "(SELECT count(DISTINCT (gpu_uuid, ts)) FROM {0}gpu_samples), (SELECT count(*) FROM {0}events)"
)


def counted(host: Host) -> tuple[int, ...] | None:
    try:
        return tuple(ask(COUNT_SQL.format(""), url=host.url).rows[0])
    except CallError:
        return None


def of(batches: int) -> tuple[int, int, int]:
    """What so many batches should count as."""
    return (batches * 5 * GPUS, batches * 5 * GPUS, batches)


def in_lake(client: Any) -> tuple[int, ...]:
    row = client.execute(COUNT_SQL.format("fleet.main.")).fetchone()
    return tuple(row)


def told(client: Any) -> str:
    """Which batches are not in the lake once, and what was noted as doubtful."""
    odd = client.execute(
        "SELECT node, message, count(*) FROM fleet.main.events GROUP BY ALL HAVING count(*) != 1"
    ).fetchall()
    noted = client.execute("SELECT collector, agent_id, boot_id, sequence FROM fleet.main.doubtful")
    return f"{in_lake(client)} in the lake, not once: {odd}, doubtful: {noted.fetchall()}"


def test_two_collectors_fill_one_lake_that_both_and_any_client_see_and_no_batch_is_there_twice(
    hosts: Hosts, plain_client: Callable[[], Any]
) -> None:
    """They begin at the same moment, on an empty catalogue."""
    a, b = hosts("a", "b")
    a.start(is_waited_for=False)
    b.start(is_waited_for=False)
    a.wait_ready()
    b.wait_ready()
    for sequence in range(1, 11):
        assert send(a, sequence, "n1") == 204
        assert send(b, sequence, "n2") == 204
    for host in (a, b):
        wait_for(lambda host=host: counted(host) == of(20), "both see all", a.process, b.process)
    client = plain_client()
    wait_for(lambda: in_lake(client) == of(20), "all is sealed", a.process, b.process)
    a.kill()
    assert send(b, 11, "n1") == 204
    wait_for(lambda: in_lake(client) == of(21), "the other continues", b.process)
    assert counted(b) == of(21)
    files = client.execute(
        "SELECT data_file FROM ducklake_list_files('fleet', 'gpu_samples')"
    ).fetchall()
    assert files
    assert all(name.startswith("s3://lake/") for (name,) in files)
    a.start()
    _is_there_once(a, b, client, 21)


def _is_there_once(a: Host, b: Host, client: Any, before: int) -> None:
    """A batch that both have stored, whatever has become of it at the other; `before`: batches in the lake."""

    def settles_at(batches: int, what: str) -> None:
        for host in (a, b):
            wait_for(lambda h=host: counted(h) == of(batches), what, a.process, b.process)
        wait_for(lambda: in_lake(client) == of(batches), what, a.process, b.process)

    assert send(a, 1, "n3") == 204
    assert send(b, 1, "n3", again=True) == 204
    assert send(b, 2, "n3", again=True) == 204
    settles_at(before + 2, "both were hot")
    assert send(a, 3, "n3") == 204
    wait_for(lambda: in_lake(client) == of(before + 3), "A has sealed", a.process)
    assert send(b, 3, "n3", again=True) == 204
    settles_at(before + 3, "one was sealed")
    assert send(a, 4, "n3") == 204
    a.kill()
    assert send(b, 4, "n3", again=True) == 204
    wait_for(lambda: in_lake(client) == of(before + 4), "B has sealed", b.process)
    a.start()
    settles_at(before + 4, "one was killed meanwhile")


async def test_kills_and_agents_that_fail_over_lose_nothing_and_double_nothing(
    hosts: Hosts, plain_client: Callable[[], Any]
) -> None:
    """Real agents send to any collector that answers, while one collector after the other is killed."""
    a, b = hosts("a", "b")
    a.start()
    b.start()
    async with AsyncExitStack() as stack:
        agents = [await stack.enter_async_context(shipping(n, [a, b])) for n in range(4)]
        for round_ in range(2):
            victim = (a, b)[round_ % 2]
            for spool, sealed in agents:
                for sequence in range(10 * round_ + 1, 10 * round_ + 11):
                    put = spool.put(compress(body(sequence, spool.boot_id)), 1)
                    assert put.sequence == sequence
                sealed.set()
            await asyncio.sleep(0.15 * (round_ + 1))
            await asyncio.to_thread(victim.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(victim.start)
        async with asyncio.timeout(180):
            while any(spool.count for spool, _ in agents):  # noqa: ASYNC110  not ours to signal
                await asyncio.sleep(0.05)
    expected = of(4 * 20)
    client = plain_client()
    processes = [host.process for host in (a, b) if host.process]
    wait_for(lambda: in_lake(client) == expected, lambda: told(client), *processes)
    for host in (a, b):
        wait_for(lambda host=host: counted(host) == expected, lambda: told(client), *processes)


@asynccontextmanager
async def shipping(number: int, to: list[Host]) -> AsyncIterator[tuple[Spool, asyncio.Event]]:
    """An agent's spool and shipper; its node is named like its boot."""
    clock, sealed = SystemClock(), asyncio.Event()
    spool = Spool(None, bytes_max=10**9, clock=clock, boot=f"n{number}")
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        shipper = Shipper(
            spool,
            Worker("spool"),
            [await stack.enter_async_context(open_transport(h.url)) for h in to],
            clock=clock,
            counters=Counters(),
            sealed=sealed,
            on_refused=pytest.fail,
            request_timeout_s=2.0,
            backoff_max_s=0.5,
        )
        task = group.create_task(shipper.run())
        yield spool, sealed
        task.cancel()


def test_a_lost_disk_loses_nothing_that_the_standby_has(
    hosts: Hosts, plain_client: Callable[[], Any]
) -> None:
    """A's agent continues at the standby, with the batch whose answer it did not see."""
    a, standby = hosts("a", "standby")
    standby.start()
    a.set("standby_url", standby.url)
    a.seals_after_s = 3600
    a.start()
    for sequence in range(1, 6):
        assert send(a, sequence) == 204
    a.kill()
    shutil.rmtree(a.folder / "store")
    assert send(standby, 5, again=True) == 204
    assert send(standby, 6) == 204
    client = plain_client()
    wait_for(lambda: in_lake(client) == of(2), "the standby has sealed its own", standby.process)
    (identity,) = CopyFolder(standby.folder / "store").collectors()
    assert standby.command("collector", "recover") == f"{identity}\n"
    assert "are in the lake now" in standby.command("collector", "recover", identity)
    wait_for(lambda: in_lake(client) == of(6), lambda: told(client), standby.process)
    assert counted(standby) == of(6)
    assert standby.command("collector", "recover") == "there are no second copies here\n"


def test_a_catalogue_that_goes_away_costs_nothing_but_time(
    hosts: Hosts, plain_client: Callable[[], Any], postgres: Postgres
) -> None:
    """Batches are taken meanwhile, or stay with the agent where DuckDB was asking the server at that
    moment and has to be opened again."""
    (a,) = hosts("a")
    a.start()
    assert send(a, 1) == 204
    wait_for(lambda: in_lake(plain_client()) == of(1), "it is sealed", a.process)
    postgres.stop()
    try:
        taken = {sequence: send(a, sequence) for sequence in range(2, 8)}
        assert set(taken.values()) <= {204, 503, None}
        with pytest.raises(CallError):
            ask("SELECT count(*) FROM gpu_samples", url=a.url)
    finally:
        postgres.start()

    def takes(sequence: int) -> bool:
        a.revive()
        return send(a, sequence, again=True) == 204

    for sequence in taken:
        wait_for(lambda n=sequence: takes(n), "it takes batches", a.process)
    wait_for(lambda: counted(a) == of(7), "all is there again", a.process)
    wait_for(lambda: in_lake(plain_client()) == of(7), "and sealed", a.process)


def test_a_collector_that_cannot_reach_the_catalogue_says_so_in_a_line(
    hosts: Hosts, postgres: Postgres
) -> None:
    (a,) = hosts("a")
    postgres.stop()
    try:
        a.start(is_waited_for=False)
        assert a.process is not None
        assert a.process.popen.wait(DEADLINE_S) != 0
    finally:
        postgres.start()
    last = a.output.strip().splitlines()[-1]
    assert "the lake at s3://lake/" in last
    assert "refused" in last
    assert "Traceback" not in a.output
    assert "geheim" not in a.output


def silences(host: Host) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call("GET", "/v1/silences", url=host.url)["silences"]
    return found


def test_a_silence_holds_at_all_collectors_and_its_end_too_also_for_one_that_was_away(
    hosts: Hosts,
) -> None:
    a, b = hosts("a", "b")
    for host in (a, b):
        host.start()
    asked = {"matchers": ["node=n1"], "comment": "rack “7” moves", "for": "2h"}
    made = call("POST", "/v1/silences", asked, url=a.url)
    wait_for(lambda: silences(b) == [made], "it is at the other collector", *_processes(a, b))
    a.kill()
    call("DELETE", f"/v1/silences/{made['id']}", url=b.url)
    a.start()
    wait_for(lambda: silences(a) == [], "the end has come", *_processes(a, b))
    again = call("POST", "/v1/silences", asked, url=b.url)
    wait_for(lambda: silences(a) == [again], "a new one goes the other way", *_processes(a, b))


def _processes(*hosts: Host) -> list[Process]:
    return [host.process for host in hosts if host.process is not None]
