"""Real agents at real collectors with TLS and tokens: what goes wrong is one line, nothing is lost, no secret is shown."""

import asyncio
import logging
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from gpuwarden.access import Scope, Token
from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden_agent import daemon as agent_daemon
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.settings import AgentSettings, Timing
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_simulator import SimulatedNode

pytestmark = pytest.mark.slow

PAST = datetime(2020, 1, 1, tzinfo=UTC)


class Site:
    """A data folder, an authority and a node's files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir()
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.authority = trustme.CA()
        self.ca, self.token = folder / "ca.pem", folder / "agent.token"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.certify()
        self.right = self.grant(Scope.INGEST, "n1")
        self.token.write_text(self.right.text)

    def certify(self, ends_at: datetime | None = None) -> None:
        made = self.authority.issue_cert("127.0.0.1", "localhost", not_after=ends_at)
        made.private_key_pem.write_to_path(str(self.key))
        made.cert_chain_pems[0].write_to_path(str(self.cert))

    def grant(self, scope: Scope, node: str | None = None) -> Token:
        token = Token.new(scope)
        entry = TokenEntry(token.id, scope, token.digest, SystemClock().now(), node)
        edit(self.data / NAME, lambda book: (book.with_entry(entry), None))
        return token

    def agent(self, url: str) -> AgentSettings:
        return AgentSettings(
            node="n1",
            backend="simulator",
            collector_url=(url,),
            token_file=self.token,
            tls_ca=self.ca,
            state_dir=self.folder / "state",
            batch_s=0.5,
            interval_s=0.25,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@asynccontextmanager
async def collecting(site: Site, port: int = 0) -> AsyncIterator[Collector]:
    settings = CollectorSettings(
        port=port,
        data_dir=site.data,
        memory_limit="512MiB",
        require_tokens=True,
        tls_cert=site.cert,
        tls_key=site.key,
    )
    async with running(settings, SystemClock()) as collector:
        yield collector


@asynccontextmanager
async def shipping(settings: AgentSettings) -> AsyncIterator[Counters]:
    """An agent; stopped at the end, when it sends what it has."""
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    node = SimulatedNode("n1", 2, model_named("L4-24GB"), 1, host=False)
    async with asyncio.TaskGroup() as group:
        group.create_task(
            agent_daemon.run(
                settings,
                SystemClock(),
                stop,
                probes=[node],
                on_ready=ready.set_result,
                timing=Timing(backoff_max_s=0.5, stop_timeout_s=10),
            )
        )
        try:
            yield await ready
        finally:
            stop.set()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(180):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def away(caplog: Any) -> list[str]:
    return [r.why for r in caplog.records if r.message.startswith("collector takes no batches")]


def wrong_token(site: Site) -> Callable[[], None]:
    site.token.write_text(Token.new(Scope.INGEST).text)
    return lambda: site.token.write_text(site.right.text) and None


def anothers_token(site: Site) -> Callable[[], None]:
    site.token.write_text(site.grant(Scope.INGEST, "n2").text)
    return lambda: site.token.write_text(site.right.text) and None


def expired(site: Site) -> Callable[[], None]:
    site.certify(PAST)
    return site.certify


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            wrong_token,
            r"it answered 401: the token \w+ is unknown or revoked; get one: `gpuwarden enroll`",
        ),
        (
            anothers_token,
            r"it answered 403: the token is for node n2, and the batch has rows of node n1",
        ),
        (expired, r"its certificate is refused: certificate has expired: .*init --renew"),
    ],
)
async def test_a_mistake_is_one_line_and_mended_while_it_runs_loses_nothing(
    site: Site, caplog: Any, spoil: Callable[[Site], Callable[[], None]], says: str
) -> None:
    caplog.set_level(logging.INFO)
    mend = spoil(site)
    async with collecting(site) as collector, shipping(site.agent(collector.url)) as counters:
        await until(lambda: counters.tries_failed > 2)
        [why] = away(caplog)
        assert re.match(says, why) and "\n" not in why
        assert collector.stats.batches == 0
        mend()
        await until(lambda: counters.batches_acknowledged > 3)
    assert counters.batches_sealed == counters.batches_acknowledged == collector.stats.batches
    assert counters.batches_refused == counters.batches_dropped == counters.rows_dropped == 0


NEXT = """
import sys
import gpuwarden.wire
gpuwarden.wire.WIRE_VERSION = 2
from gpuwarden_cli.main import main
sys.exit(main(sys.argv[1:]))
"""


async def test_a_collector_of_the_next_wire_version_is_told_and_gets_nothing(
    site: Site, caplog: Any
) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARDEN_")} | {
        "GPUWARDEN_COLLECTOR_TLS_CERT": str(site.cert),
        "GPUWARDEN_COLLECTOR_TLS_KEY": str(site.key),
        "GPUWARDEN_COLLECTOR_REQUIRE_TOKENS": "true",
    }
    words = ["collector", "run", "--port", "0", "--data-dir", str(site.data)]
    newer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", NEXT, *words, env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert newer.stderr is not None
        url = None
        while url is None:
            line = (await newer.stderr.readline()).decode()
            assert line, "it ended"
            url = re.search(r"listens url=\"?([^\s\"]+)", line)
        async with shipping(site.agent(url[1])) as counters:
            await until(lambda: counters.tries_failed > 2)
    finally:
        newer.terminate()
        await newer.wait()
    [why] = away(caplog)
    assert why == (
        "it answered 426: Gpuwarden-Wire-Version is '1'; this collector speaks 2: upgrade the older of"
        " agent and collector"
    )
    assert counters.batches_refused == counters.batches_dropped == 0
    assert counters.spool_batches == counters.batches_sealed > 0
    async with collecting(site) as collector, shipping(site.agent(collector.url)) as later:
        await until(lambda: later.spool_batches == 0 and later.batches_acknowledged > 0)
    assert collector.stats.batches == counters.batches_sealed + later.batches_sealed


def ask(world: Any, *words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("gpuwarden")), *words]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=180
    )


def test_no_secret_is_in_a_log_an_answer_or_the_process_list(
    site: Site, world: Any, tmp_path: Path
) -> None:
    """A whole life at level debug: enrolment, samples, questions, a token that is revoked."""
    config = tmp_path / "collector.toml"
    config.write_text(
        f'data_dir = "{site.data}"\ntls_cert = "{site.cert}"\ntls_key = "{site.key}"\n'
        f'tls_ca = "{site.ca}"\nrequire_tokens = true\nport = {world.port}\nlog_level = "debug"\n'
    )
    collector = world.start("collector", "run", "--config", str(config))
    url = f"https://localhost:{world.port}"
    reader, revoked = site.grant(Scope.READ), Token.new(Scope.READ)
    env = world.env | {"GPUWARDEN_URL": url, "GPUWARDEN_CA": str(site.ca)}
    agent_toml = tmp_path / "etc" / "agent.toml"
    said = []

    def do(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        done = ask(world, *words, env=env | more)
        said.append(done.stdout + done.stderr)
        return done

    wait_for_tls(world.port, site.ca)
    line = ask(
        world, "token", "enrolment", "--config", str(config), "--collector", url, env=env
    ).stdout
    one_time = Token.parse(line.split()[0].partition("=")[2])
    words = line.split()[2:]
    done = do(*words, "--config", str(agent_toml), "--node", "n3", GPUWARDEN_TOKEN=one_time.text)
    assert done.returncode == 0, done.stderr
    own = Token.parse((agent_toml.parent / "agent.token").read_text().strip())
    agent = world.start(
        "agent", "run", "--config", str(agent_toml), "--backend", "simulator",
        "--state-dir", str(tmp_path / "state"), "--log-level", "debug",
    )  # fmt: skip
    question = "select count(*) as n from gpu_samples where node = 'n3'"
    for _ in range(60):
        found = do("sql", question, "--format", "csv", GPUWARDEN_TOKEN=reader.text).stdout.split()
        if found[1:] and int(found[1]) > 0:
            break
        time.sleep(1)
    assert found[1:] and int(found[1]) > 0
    assert do("sql", question, GPUWARDEN_TOKEN=revoked.text).returncode == 2
    words = ("agent", "doctor", "--config", str(agent_toml), "--backend", "simulator")
    assert f"{url} answers in" in do(*words).stdout
    reader_file = site.folder / "reader"
    reader_file.write_text(reader.text)
    refused = do(*words, GPUWARDEN_AGENT_TOKEN_FILE=str(reader_file)).stdout
    assert "the agent's token has scope read; it needs ingest" in refused
    do("token", "list", "--config", str(config))
    listed = b"".join(Path(f"/proc/{p.popen.pid}/cmdline").read_bytes() for p in (collector, agent))
    for process in (agent, collector):
        assert process.stop() == 0
    everything = "".join([*said, collector.output, agent.output, listed.decode()])
    for token in (one_time, own, reader, revoked):
        assert (
            token.id in everything or token is reader
        )  # the names are there, so the test sees something
        assert token.text.rpartition("_")[2] not in everything


def wait_for_tls(port: int, ca: Path) -> None:
    import urllib.request

    context = ssl.create_default_context(cafile=str(ca))
    for _ in range(300):
        try:
            with urllib.request.urlopen(
                f"https://localhost:{port}/healthz", timeout=5, context=context
            ):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the collector does not answer")
