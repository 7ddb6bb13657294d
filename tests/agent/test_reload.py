"""A reload changes without loss what can change live, names the rest, and ignores wrong settings."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.agent.fakes import until_true
from tests.agent.ship.rig import shipping

from gpuwarden.access import Scope, Token
from gpuwarden.lifecycle import StartError
from gpuwarden.settings import SettingsError
from gpuwarden_agent.reload import (
    LIVE,
    CollectorTransports,
    Difference,
    Reload,
    difference,
    keep_reloading,
)
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.ship.transport import Transport, open_transport

BEFORE = AgentSettings()


def test_what_changed_is_told_apart_by_whether_it_can_change_live() -> None:
    assert difference(BEFORE, BEFORE) == Difference((), ())
    after = replace(
        BEFORE, interval_s=2.0, collector_url=("http://x:1",), log_level="debug", node="n"
    )
    assert difference(BEFORE, after) == Difference(
        ("collector_url", "log_level"), ("node", "interval_s")
    )
    assert {f.name for f in fields(AgentSettings)} >= LIVE


class Case:
    """A reload under the test's control: what the file says, and which transports are in use."""

    def __init__(self, connections: CollectorTransports) -> None:
        self.says: AgentSettings | Exception = BEFORE
        self.used: list[list[str]] = []
        self.connections = connections
        self.reload = Reload(asyncio.Event(), self.load)

    def load(self) -> AgentSettings:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def use(self, transports: Sequence[Transport]) -> None:
        self.used.append([t.address.shown("") for t in transports])

    async def ask(self, says: AgentSettings | Exception) -> None:
        self.says = says
        self.reload.asked.set()
        await asyncio.sleep(0.05)


@asynccontextmanager
async def reloading(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Case]:
    caplog.set_level(logging.INFO)
    connections = CollectorTransports()
    await connections.open(BEFORE)
    case = Case(connections)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(keep_reloading(case.reload, BEFORE, connections, case.use))
        yield case
        task.cancel()
    await connections.close()


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [r for r in caplog.records if r.name.endswith("reload")]
    return [(r.message, r.why if hasattr(r, "why") else getattr(r, "settings", "")) for r in found]


async def test_new_addresses_are_used_and_what_needs_a_restart_is_named_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with reloading(caplog) as case:
        await case.ask(replace(BEFORE, collector_url=("http://a:1", "http://b:2"), batch_s=1.0))
        await case.ask(replace(BEFORE, collector_url=("http://c:3",), batch_s=1.0))
    assert case.used == [["http://a:1", "http://b:2"], ["http://c:3"]]
    assert said(caplog) == [("reloaded", ""), ("needs a restart", "batch_s")] * 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (SettingsError("agent.toml:3: unknown setting 'prot'"), "agent.toml:3: unknown setting"),
        (replace(BEFORE, collector_url=("ftp://x",)), "not an address of a collector"),
        (replace(BEFORE, token_file=Path("/nothing")), "/nothing: the token cannot be read"),
        (replace(BEFORE, collector_url=("https://x",), tls_ca=Path("/nothing")), "see tls_ca"),
    ],
)
async def test_what_is_wrong_is_one_line_and_changes_nothing(
    caplog: pytest.LogCaptureFixture, wrong: AgentSettings | Exception, says: str
) -> None:
    async with reloading(caplog) as case:
        await case.ask(wrong)
        assert case.used == []
        ((message, why),) = said(caplog)
        assert message == "not reloaded; the previous settings stay in force"
        assert says in why and "\n" not in why
        await case.ask(BEFORE)
        assert len(case.used) == 1, "it still listens"


async def test_token_and_authority_are_read_again_where_the_paths_are_the_same(
    tmp_path: Path,
) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(ca))
    settings = replace(BEFORE, collector_url=("https://x",), token_file=token, tls_ca=ca)
    found: list[str | None] = []

    async def use(transports: Sequence[Transport]) -> None:
        found.append(transports[0]._credentials.authorization)

    connections = CollectorTransports()
    with pytest.raises(StartError):
        await connections.open(settings)
    for _ in range(2):
        token.write_text(Token.new(Scope.INGEST).text)
        await connections.replace(settings, use)
    await connections.close()
    assert len(set(found)) == 2 and None not in found


async def test_a_shipper_that_is_redirected_loses_nothing_and_sends_nothing_twice(
    stub_collector: Any,
) -> None:
    other = type(stub_collector)()
    await other.start()
    async with shipping(stub_collector.url) as rig, open_transport(other.url) as second:
        rig.put(60)
        await until_true(lambda: rig.counters.batches_acknowledged > 10)
        await rig.shipper.redirect([second])
        at_first = len(stub_collector.requests)
        rig.put(5)
        await until_true(rig.is_done)
    await other.stop()
    assert len(stub_collector.requests) == at_first
    sequences = [
        int(h["Gpuwarden-Sequence"]) for s in (stub_collector, other) for h, _ in s.requests
    ]
    assert sorted(sequences) == list(range(1, 66))


async def test_after_a_redirection_the_next_try_does_not_wait(stub_collector: Any) -> None:
    """It was waiting for a minute and more after many failures."""
    async with (
        shipping("http://127.0.0.1:1", backoff_max_s=3600) as rig,
        open_transport(stub_collector.url) as somebody,
    ):
        # So that the pause after the next failure is half an hour or so.
        rig.shipper._failures = 20
        rig.shipper._is_reachable.clear()
        rig.put()
        await until_true(lambda: rig.counters.tries_failed > 20)
        await rig.shipper.redirect([somebody])
        await until_true(rig.is_done)
    assert rig.counters.batches_acknowledged == 1
