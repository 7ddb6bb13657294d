"""`gpuwarden enroll` against a collector with TLS: what it writes, that it can be repeated, which certificates it accepts."""

import asyncio
import os
import shutil
import tomllib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.access import Scope, Token, read_token
from gpuwarden.clock import SystemClock
from gpuwarden_cli.main import main
from gpuwarden_collector.auth.authority import AuthorityFiles, init
from gpuwarden_collector.auth.tls import certificate_of
from gpuwarden_collector.auth.token_file import NAME, edit, load
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings


class Site:
    """A collector, and a node beside it."""

    def __init__(self, folder: Path) -> None:
        self.data, self.node = folder / "data", folder / "etc"
        self.data.mkdir()
        self.files = AuthorityFiles(folder / "tls")
        init(self.files, ["localhost"], SystemClock().now())
        self.fingerprint = certificate_of(self.files.ca).fingerprint
        self.url = ""

    def one_time(self, uses: int = 1, valid: timedelta = timedelta(hours=1)) -> Token:
        now = SystemClock().now()
        token = Token.new(Scope.ENROLL)
        entry = TokenEntry(
            token.id, Scope.ENROLL, token.digest, now, expires_at=now + valid, uses_left=uses
        )
        edit(self.data / NAME, lambda book: (book.with_entry(entry), None))
        return token

    async def enroll(self, token: Token | None, *more: str) -> int:
        words = ["enroll", "--collector", self.url, "--config", str(self.node / "agent.toml")]
        pin = [] if "--ca-fingerprint" in more else ["--ca-fingerprint", self.fingerprint]
        os.environ.pop("GPUWARDEN_TOKEN", None)
        if token is not None:
            os.environ["GPUWARDEN_TOKEN"] = token.text
        return await asyncio.to_thread(main, [*words, *pin, "--node", "n1", *more])

    def content(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in sorted(self.node.iterdir())}


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose collector does not run."""
    monkeypatch.setenv("GPUWARDEN_TOKEN", "")
    return Site(tmp_path)


@pytest.fixture
async def site(stopped: Site, empty_store: Path) -> AsyncIterator[Site]:
    made = stopped
    shutil.copytree(empty_store, made.data, dirs_exist_ok=True)
    settings = CollectorSettings(
        port=0,
        data_dir=made.data,
        memory_limit="512MiB",
        require_tokens=True,
        tls_cert=made.files.cert,
        tls_key=made.files.key,
        tls_ca=made.files.ca,
    )
    async with running(settings, SystemClock()) as collector:
        made.url = collector.url.replace("127.0.0.1", "localhost")
        yield made


async def test_a_node_is_brought_in_and_once_more_changes_nothing(site: Site, capsys: Any) -> None:
    one_time = site.one_time()
    assert await site.enroll(one_time) == 0
    assert "n1 is enrolled at https://localhost" in capsys.readouterr().out
    first = site.content()
    assert set(first) == {"agent.token", "agent.toml", "ca.pem"}
    assert first["ca.pem"] == site.files.ca.read_bytes()
    modes = {p.name: p.stat().st_mode & 0o777 for p in site.node.iterdir()}
    assert (modes["agent.token"], modes["ca.pem"]) == (0o600, 0o600)
    assert tomllib.loads(first["agent.toml"].decode()) == {
        "token_file": str(site.node / "agent.token"),
        "tls_ca": str(site.node / "ca.pem"),
        "collector_url": site.url,
        "node": "n1",
    }
    own = read_token(site.node / "agent.token")
    assert load(site.data / NAME).get(own.id).node == "n1"
    assert await site.enroll(None) == 0  # no token is needed, none is used up
    said = capsys.readouterr().out
    assert "was enrolled" in said and "(as it was)" in said
    assert site.content() == first
    # With --if-new nobody is asked.
    site.url = "https://127.0.0.1:1"
    assert await site.enroll(None, "--if-new") == 0
    assert capsys.readouterr().out == f"n1 has its token: {site.node / 'agent.token'}\n"
    assert site.content() == first


async def test_an_answer_that_was_lost_costs_nothing_and_another_token_is_refused(
    site: Site, capsys: Any
) -> None:
    one_time = site.one_time(uses=1)
    assert await site.enroll(one_time) == 0
    # As if the node had died before it put the token in its place.
    (site.node / "agent.token").rename(site.node / "agent.token.new")
    assert await site.enroll(one_time) == 0
    assert "agent.token.new" not in site.content()
    assert [e.node for e in load(site.data / NAME).entries if e.scope is Scope.INGEST] == ["n1"]
    (site.node / "agent.token").unlink()
    assert await site.enroll(site.one_time()) == 2
    assert "node n1 has the token" in capsys.readouterr().err


Case = tuple[Callable[[Site], Token | None], tuple[str, ...], str]
WRONG: tuple[Case, ...] = (
    (lambda s: None, (), "no token: `gpuwarden token enrolment`"),
    (lambda s: Token.new(Scope.ENROLL), (), "is unknown or revoked"),
    (lambda s: s.one_time(valid=timedelta(0)), (), "expired at"),
    (lambda s: s.one_time(uses=0), (), "is used up"),
    (lambda s: None, ("--token", "hunter2"), "this is not a gpuwarden token"),
    (lambda s: None, ("--token-file", "/no/file"), "/no/file: the token cannot be read"),
)


async def test_a_man_in_between_gets_nothing_and_what_is_wrong_leaves_no_token(
    site: Site, capsys: Any
) -> None:
    wrong = "sha256:" + "0" * 64
    assert await site.enroll(site.one_time(), "--ca-fingerprint", wrong) == 2
    assert "has another authority than --ca-fingerprint names" in capsys.readouterr().err
    assert not site.node.exists()
    assert [e.uses_left for e in load(site.data / NAME).entries] == [1]
    for token, more, says in WRONG:
        assert await site.enroll(token(site), *more) == 2, says
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1 and "hunter2" not in err
        assert not site.node.exists() or site.content() == {}, says


async def test_without_tls_it_is_not_done_unless_asked_for(stopped: Site, capsys: Any) -> None:
    stopped.url = "http://localhost:1"
    assert await stopped.enroll(stopped.one_time()) == 2
    assert "must begin with https://" in capsys.readouterr().err


async def test_a_collector_that_is_away_is_named(stopped: Site, capsys: Any) -> None:
    stopped.url = "https://localhost:1"
    assert await stopped.enroll(stopped.one_time()) == 2
    assert "https://localhost:1: no collector answers there" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
async def test_what_root_writes_is_the_agents_users(site: Site) -> None:
    assert await site.enroll(site.one_time(), "--user", "nobody") == 0
    import pwd

    nobody = pwd.getpwnam("nobody").pw_uid
    assert {(site.node / n).stat().st_uid for n in ("agent.token", "ca.pem")} == {nobody}
