"""What a person would call down is named, the gravest first: of ingest, of queries and of rules."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.each import each

from gpuwarden.clock import EPOCH
from gpuwarden_collector.daemon import running
from gpuwarden_collector.ops.health import Duties
from gpuwarden_collector.ops.readiness import (
    ANSWER_AGE_S,
    ASK_AGAIN_S,
    READY_CHECKS,
    ReadyPart,
    ReadyState,
    RulesProgress,
    must_ask,
    not_ready,
    part_lines,
)
from gpuwarden_collector.processes.control_socket import ask
from gpuwarden_collector.query import querier
from gpuwarden_collector.query.querier import REFUSE_S
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Levels, QueryHealth

NOW = EPOCH + timedelta(days=20_000)
LEVELS = Levels(
    queue_bytes=0, body_bytes_in_flight=0, database_bytes=0, is_alive=True, is_failing=False
)
RULES = RulesProgress(NOW - timedelta(hours=1), NOW - timedelta(seconds=9), 5.0)
READY = ReadyState(LEVELS, QueryHealth(answered_s=9.0), RULES, NOW)
FAILED = QueryHealth(answered_s=1.0, asked_s=2.0).failed("no process")


def test_each_check_finds_its_own_fault_and_all_are_listed() -> None:
    assert not_ready(READY) == {}
    troubles = {
        "writer": {"is_alive": False},
        "decode": {"is_decoding": False},
        "commit": {"is_failing": True},
        "storage": {"storage_trouble": "rows do not move"},
        "clock": {"clock_doubt": "agents disagree"},
        "room": {"disk_refusal": "the disk is full"},
    }
    states = {
        name: replace(READY, levels=replace(LEVELS, **values)) for name, values in troubles.items()
    }
    states["queries"] = replace(READY, queries=FAILED)
    states["rules"] = replace(READY, now=NOW + timedelta(minutes=3))
    assert list(states) == [check.name for check in READY_CHECKS]
    for name, state in states.items():
        assert [check.name for check in not_ready(state)] == [name]
        (part,) = (check.part for check in READY_CHECKS if check.name == name)
        assert list(not_ready(state, part)) == list(not_ready(state))
        assert not any(not_ready(state, other) for other in ReadyPart if other is not part)
    everything = {key: value for values in troubles.values() for key, value in values.items()}
    levels = replace(LEVELS, **everything)
    reasons = not_ready(replace(states["rules"], levels=levels, queries=FAILED))
    assert [check.name for check in reasons] == list(states)
    assert all("\n" not in reason for reason in reasons.values())


def test_each_part_of_the_process_has_a_line() -> None:
    assert part_lines(READY) == {
        "ingest": "batches are stored",
        "queries": "queries are answered",
        "rules": "rules are evaluated",
    }
    state = replace(READY, queries=FAILED, rules=None)
    assert part_lines(state) == {
        "ingest": "batches are stored",
        "queries": "queries are not answered: no process",
    }
    assert part_lines(state, ReadyPart.INGEST) == {"ingest": "batches are stored"}


@each(
    ("evaluated_s", "begun_s", "interval_s", "is_late"),
    [
        (None, 100, 5.0, False),  # it starts
        (None, 130, 5.0, True),
        (119, 3600, 5.0, False),
        (121, 3600, 5.0, True),
        (170, 3600, 60.0, False),
        (181, 3600, 60.0, True),
    ],
)
def test_rules_are_late_after_a_few_intervals(
    evaluated_s: float | None, begun_s: float, interval_s: float, is_late: bool
) -> None:
    evaluated_at = None if evaluated_s is None else NOW - timedelta(seconds=evaluated_s)
    rules = RulesProgress(NOW - timedelta(seconds=begun_s), evaluated_at, interval_s)
    assert bool(not_ready(replace(READY, rules=rules))) == is_late


def test_a_query_is_asked_only_where_no_newer_answer_is_known() -> None:
    fresh = QueryHealth().answered(100.0)
    assert must_ask(QueryHealth(), 0.0)
    assert not must_ask(fresh, 100.0 + ANSWER_AGE_S)
    assert must_ask(fresh, 101.0 + ANSWER_AGE_S)
    assert must_ask(fresh.doubted(), 100.0), "a client's query failed"
    assert not must_ask(replace(fresh, asked_s=99.0).doubted(), 98.0 + ASK_AGAIN_S)
    assert not must_ask(FAILED, 1.0 + ASK_AGAIN_S) and must_ask(FAILED, 2.0 + ASK_AGAIN_S)


def test_an_answer_that_came_meanwhile_counts_more_than_a_failed_question() -> None:
    asked = QueryHealth(asked_s=10.0).answered(11.0)
    assert asked.failed("no slot").problem is None
    assert FAILED.answered(12.0).problem is None
    assert FAILED.doubted().problem == "no process"


async def test_readyz_says_that_no_query_is_answered_until_one_is(
    start: Any, session: Any, clock: Any, data_dir: Path, monkeypatch: Any
) -> None:
    async def ready(part: str = "") -> tuple[int, dict[str, Any]]:
        async with session.get(collector.url + "/readyz" + part) as answer:
            return answer.status, await answer.json()

    async def asked() -> int:
        async with session.post(collector.url + "/v1/sql", data="SELECT 1") as answer:
            return int(answer.status)

    def no_memory(*_: Any) -> int:
        raise OSError("no memory")

    @contextmanager
    def broken() -> Iterator[None]:
        """No process starts, and there is none."""
        with monkeypatch.context() as patched:
            patched.setattr(querier, "spawn", no_memory)
            for pid in collector.querier.pids:
                os.kill(pid, signal.SIGKILL)
            yield

    async with start() as collector:
        with broken():
            assert await asked() != 200
            status, said = await ready()
            assert (status, said["checks"]) == (503, ["queries"])
            assert "no query process could be started" in said["parts"]["queries"]
            assert said["parts"]["ingest"] == "batches are stored"
            assert (await ready("?part=ingest"))[0] == 200, "agents can send all the same"
            assert (await ready("?part=queries"))[0] == 503
            assert (await ready("?part=all"))[0] == 400
            document = await asyncio.to_thread(ask, data_dir, "health", 30)
            assert "queries" in document["not_ready"]
        assert (await ready())[0] == 503, "it is not asked at every probe"
        clock.advance(ASK_AGAIN_S)
        await asyncio.sleep(REFUSE_S)
        assert (await ready())[0] == 200
        with broken():
            assert (await ready())[0] == 200, "the newest answer is fresh"
            assert await asked() != 200
            clock.advance(ASK_AGAIN_S)
            assert (await ready())[0] == 503
        await asyncio.sleep(REFUSE_S)
        assert await asked() == 200
        assert (await ready())[0] == 200, "an answer to a client is one"


async def test_readyz_says_that_no_rule_is_evaluated(
    session: Any, clock: Any, tmp_path: Path
) -> None:
    begun_at = clock.now() - timedelta(minutes=9)
    late = Duties(progress=RulesProgress(begun_at, None, 5.0))
    settings = CollectorSettings(data_dir=tmp_path, port=0)
    async with running(settings, clock, duties=lambda: late) as collector:
        async with session.get(f"{collector.url}/readyz") as answer:
            said = await answer.json()
        assert (answer.status, said["checks"]) == (503, ["rules"])
        assert said["parts"]["queries"] == "queries are answered"
