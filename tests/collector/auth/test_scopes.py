"""Every endpoint that is served has a scope, and asks for it."""

import asyncio
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.end_to_end.conftest import copy_rules

from gpuwarden.access import Scope
from gpuwarden.clock import SystemClock
from gpuwarden_cli.composition.collector import collecting
from gpuwarden_collector.auth.scopes import NEEDS, Anyone, Holder, need_of
from gpuwarden_collector.settings import CollectorSettings

LESSER = {
    (Scope.EDIT, Scope.READ),
    (Scope.OPERATE, Scope.READ),
    (Scope.OPERATE, Scope.EDIT),
}


def test_an_unlisted_endpoint_requires_admin() -> None:
    assert need_of("POST", "/v1/new") is Scope.ADMIN
    assert need_of("HEAD", "/metrics") is Scope.READ


@pytest.mark.slow
async def test_every_endpoint_asks_every_token_for_its_scope(
    data_dir: Path, grant: Any, bearer: Any
) -> None:
    tokens = {scope: grant(scope, uses_left=9) for scope in Scope}
    settings = CollectorSettings(
        port=0,
        data_dir=data_dir,
        require_tokens=True,
        query_processes=1,
        rules_dirs=(copy_rules(data_dir / "no_rules"),),
    )
    async with collecting(settings, SystemClock()) as collector:
        served = {(m, p) for m, p in collector.endpoints if m != "HEAD"}
        assert served - set(NEEDS) == set(), "say in scopes.py what it needs"
        assert set(NEEDS) - served == set(), "there is no such endpoint any more"
        async with aiohttp.ClientSession() as session:
            for (method, path), need in NEEDS.items():
                url = collector.url + re.sub(r"\{\w+\}", "x", path)
                for held in (None, *Scope):
                    headers = bearer(tokens[held]) if held else {}
                    async with session.request(method, url, headers=headers, data=b"") as answer:
                        expected = verdict(need, held)
                        got = answer.status if answer.status in (401, 403) else None
                        assert got == expected, (method, path, held, await answer.text())


def verdict(need: Any, held: Scope | None) -> int | None:
    if need is Anyone:
        return None
    if held is None:
        return 401
    if need is Holder or held in (need, Scope.ADMIN) or (held, need) in LESSER:
        return None
    return 403


async def test_no_other_spelling_of_a_path_goes_around_the_gate(start: Any) -> None:
    async with start(require_tokens=True) as collector:
        host, port = collector.url.removeprefix("http://").split(":")
        for path in (
            "/nothing",
            "/v1/ingest/../sql",
            "//v1/sql",
            "/v1/sql/",
            "/v1/%73ql",
            "/v1/sql?a=b",
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + b"select 1")
            answer = await reader.read()
            writer.close()
            assert answer.split(b" ", 2)[1] in (b"401", b"404"), path
