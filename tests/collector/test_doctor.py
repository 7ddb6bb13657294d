"""Each check of a collector's doctor is proven by breaking the thing, on real files and a real collector."""

import asyncio
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from gpuwarden.access import Scope, Token
from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.doctor import FAIL, OK, WARN, Check, worst
from gpuwarden_collector import doctor
from gpuwarden_collector.auth.token_file import NAME as TOKENS
from gpuwarden_collector.auth.token_file import edit
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.daemon import running
from gpuwarden_collector.doctor import examine
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.state import FILE_NAME

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Host:
    """A collector's host with nothing wrong but that no collector runs."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir(mode=0o750)
        self.clock = ManualClock(NOW)
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = (folder / n for n in ("server.pem", "server.key", "ca.pem"))
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.certify(NOW + timedelta(days=300))
        self.config = folder / "collector.toml"
        self.config.touch(0o640)
        self.settings = CollectorSettings(
            data_dir=self.data, host="0.0.0.0", port=8750, disk_free_bytes_min=1024**2,
            tls_cert=self.cert, tls_key=self.key,
        )  # fmt: skip
        self.grant()

    def certify(self, ends_at: datetime) -> None:
        made = self.authority.issue_cert("localhost", not_after=ends_at)
        self.cert.write_bytes(made.cert_chain_pems[0].bytes())
        self.key.write_bytes(made.private_key_pem.bytes())
        self.key.chmod(0o600)

    def grant(self, ends_at: datetime | None = None) -> Token:
        token = Token.new(Scope.INGEST)
        entry = TokenEntry(token.id, Scope.INGEST, token.digest, NOW, "n1", ends_at)
        edit(self.data / TOKENS, lambda book: (book.with_entry(entry), None))
        return token

    def examined(self) -> dict[str, Check]:
        return {check.name: check for check in examine(self.settings, self.clock, self.config)}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_where_none_runs_that_is_all_that_is_wrong(host: Host) -> None:
    Database.open(host.data, EngineLimits(threads=1)).close()
    found = host.examined()
    assert {name for name, check in found.items() if check.status != OK} == {"collector"}
    assert found["collector"].remedy == "systemctl start gpuwarden-collector"
    assert "schema version" in found["store"].finding


def newer(host: Host) -> None:
    Database.open(host.data, EngineLimits(threads=1)).close()
    with closing(sqlite3.connect(host.data / FILE_NAME)) as state, state:
        state.execute("UPDATE meta SET value = 99 WHERE name = 'schema_version'")


def damaged(host: Host) -> None:
    (host.data / FILE_NAME).write_bytes(b"x" * 5000)


def anothers_file(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (host.data / "left.tmp").touch()
    os.chown(host.data / "left.tmp", 65534, 65534)


def another_key(host: Host) -> None:
    host.key.write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())


def authority(host: Host) -> None:
    host.settings = replace(host.settings, tls_ca=host.ca)


def open_authority(host: Host) -> None:
    authority(host)
    (host.ca.parent / "ca.key").touch()
    (host.ca.parent / "ca.key").chmod(0o644)


def no_tls(host: Host) -> None:
    host.settings = replace(host.settings, tls_cert=None, tls_key=None)


def s3(host: Host) -> None:
    host.settings = replace(host.settings, data="s3://bucket/x")


BROKEN: list[tuple[Callable[[Host], Any], str, str, str]] = [
    (newer, "store", FAIL, "install the newer gpuwarden again"),
    (damaged, "store", FAIL, "cannot be opened"),
    (lambda h: shutil.rmtree(h.data), "data_dir", FAIL, "does not exist"),
    (lambda h: h.data.chmod(0o755), "data_dir", WARN, "every user of this host can open"),
    (anothers_file, "data_dir", FAIL, "left.tmp does not belong"),
    (lambda h: h.config.chmod(0o666), "settings", FAIL, "others than the owner can change"),
    (lambda h: h.clock.advance(280 * 86_400), "certificate", WARN, "in 20 days"),
    (lambda h: h.clock.advance(301 * 86_400), "certificate", FAIL, "has expired"),
    (another_key, "certificate", FAIL, "the key does not match the certificate"),
    (lambda h: h.cert.unlink(), "certificate", FAIL, "No such file"),
    (lambda h: h.key.chmod(0o644), "key", FAIL, "every user of this host can read"),
    (open_authority, "key", FAIL, "can pose as the collector"),
    (authority, "authority", OK, "ends on"),
    (lambda h: (authority(h), h.ca.write_text("none")), "authority", FAIL, "no PEM certificate"),
    (no_tls, "exposure", FAIL, "there is no TLS"),
    (lambda h: (h.data / TOKENS).unlink(), "tokens", FAIL, "every request is denied"),
    (lambda h: (h.data / TOKENS).write_text("{"), "tokens", FAIL, "this is not a file of tokens"),
    (lambda h: (h.data / TOKENS).chmod(0o644), "tokens", WARN, "others than the owner can read"),
    (lambda h: h.grant(NOW + timedelta(days=5)), "tokens", WARN, "of n1 expires on 2026-03-06"),
]


@pytest.mark.parametrize(
    ("spoil", "name", "status", "says"), BROKEN, ids=lambda v: getattr(v, "__name__", str(v))
)
def test_what_is_broken_is_found_with_what_mends_it(
    host: Host, spoil: Callable[[Host], Any], name: str, status: str, says: str
) -> None:
    spoil(host)
    check = host.examined()[name]
    assert (check.status, says in check.finding) == (status, True), check
    assert "\n" not in check.finding
    assert (check.remedy != "") == (status != OK) or name == "tokens"


def test_room_is_judged_by_the_marks_of_the_settings(host: Host) -> None:
    free = shutil.disk_usage(host.data).free
    for least, status in ((free // 10, OK), (free * 2 // 3, WARN), (free * 2, FAIL)):
        host.settings = replace(host.settings, disk_free_bytes_min=least)
        assert host.examined()["disk"].status == status


def test_an_extension_of_another_version_is_named_with_the_package(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    monkeypatch.setattr(duckdb, "__version__", "9.9.9")
    check = host.examined()["extensions"]
    assert check.status == FAIL
    assert "duckdb-extension-ducklake==9.9.9" in check.finding


async def test_a_running_collector_is_asked_and_answers_over_http(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o750)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    settings = CollectorSettings(port=port, data_dir=folder, require_tokens=True)
    async with running(settings, SystemClock()):
        checks = await asyncio.to_thread(examine, settings, SystemClock(), None)
        # Another port was said on its command line.
        elsewhere = replace(settings, port=1)
        away = await asyncio.to_thread(examine, elsewhere, SystemClock(), None)
    found = {check.name: check for check in checks}
    assert [found[name].status for name in ("collector", "store", "http", "lag", "version")] == [
        OK
    ] * 5
    assert found["tokens"].status == FAIL  # it asks for them and has none
    assert found["agents"].status == found["rules"].status == WARN
    assert {c.name: c.finding for c in away}["http"] == f"http://127.0.0.1:{port}/healthz answers"


async def test_a_collector_that_does_not_answer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ASK_S", 0.3)
    settings = CollectorSettings(data_dir=tmp_path)
    server = await asyncio.start_unix_server(lambda _r, _w: None, tmp_path / "control.sock")
    async with server:
        checks = await asyncio.to_thread(examine, settings, SystemClock(), None)
    check = {c.name: c for c in checks}["collector"]
    assert (check.status, "no answer within 0.3 s" in check.finding) == (FAIL, True)
    assert worst(checks) == FAIL
