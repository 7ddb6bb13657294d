"""The gate over real HTTP: each way to show a token, web pages that ask in a reader's place, messages."""

import asyncio
import base64
import logging
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.access import Scope, Token
from gpuwarden_collector.auth.gate import GUESSES_MAX, GUESSES_S, Guesses, token_in
from gpuwarden_collector.auth.token_file import NAME, edit


async def status(session: Any, url: str, headers: Any = None, method: str = "GET") -> int:
    async with session.request(method, url, headers=headers) as answer:
        await answer.read()
        return answer.status


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@given(st.text())
def test_any_header_can_be_parsed(text: str) -> None:
    assert isinstance(token_in(text), str)
    assert token_in(f"Bearer {text}") == text.strip()
    assert token_in(basic(f"x:{text}")["Authorization"]) == text


async def test_a_token_is_sent_once_as_bearer_or_as_a_password(
    start: Any, session: Any, grant: Any, bearer: Any
) -> None:
    token = grant(Scope.READ)
    async with start(require_tokens=True) as collector:
        url = collector.url + "/metrics"
        assert await status(session, url, bearer(token)) == 200
        assert await status(session, url, basic(f"anyone:{token.text}")) == 200
        for wrong in (
            {},
            {"Authorization": token.text},
            {"Authorization": f"Bearer {token.text[:-1]}"},
            {"Authorization": "Basic ===="},
            basic(token.text),
        ):
            assert await status(session, url, wrong) == 401
        async with session.get(url) as answer:
            assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
            assert (await answer.json())["error"].startswith("this needs a token with scope read")
        host, port = collector.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        twice = f"Authorization: Bearer {token.text}\r\n" * 2
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: x\r\n{twice}\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_an_address_that_guesses_is_refused_but_for_a_right_token(
    start: Any, session: Any, grant: Any, bearer: Any, clock: Any
) -> None:
    token = grant(Scope.READ)
    async with start(require_tokens=True) as collector:
        url = collector.url + "/metrics"
        guesses = [bearer(Token.new(Scope.READ)) for _ in range(GUESSES_MAX)]
        assert {await status(session, url, guess) for guess in guesses} == {401}
        async with session.get(url, headers=guesses[0]) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "60")
            assert "30 wrong tokens in a minute" in (await answer.json())["error"]
        assert await status(session, url, bearer(token)) == 200
        wrong = {"token": Token.new(Scope.READ).text}
        async with session.post(
            collector.url + "/login", data=wrong, allow_redirects=False
        ) as answer:
            assert "why=guesses" in answer.headers["Location"]
        clock.advance(GUESSES_S)
        assert await status(session, url, guesses[0]) == 401


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=200))
def test_guesses_are_counted_by_address_and_minute(guesses: list[tuple[str, float]]) -> None:
    counted, now_s, made = Guesses(), 1000.0, []
    for client, pause_s in guesses:
        now_s += pause_s
        is_over = counted.is_over(client, now_s)
        recent = sum(who == client and now_s - at_s < GUESSES_S for who, at_s in made)
        assert not is_over or recent >= GUESSES_MAX
        counted.note(client, now_s)
        made.append((client, now_s))


async def test_tokens_come_and_go_by_a_change_of_the_file_alone(
    start: Any, session: Any, grant: Any, bearer: Any, data_dir: Any
) -> None:
    async with start(require_tokens=True) as collector:
        url = collector.url + "/metrics"
        assert await status(session, url) == 401
        token = grant(Scope.READ)
        assert await status(session, url, bearer(token)) == 200  # that very moment
        edit(data_dir / NAME, lambda book: (book.revoked([token.id]), None))
        async with asyncio.timeout(30):
            while await status(session, url, bearer(token)) == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_page_of_another_site_can_change_nothing(start: Any, session: Any) -> None:
    async with start() as collector:  # on loopback without tokens, where nothing else would stop it
        for headers, expected in (
            ({}, 200),
            ({"Origin": collector.url}, 200),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Sec-Fetch-Site": "none"}, 200),
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "cross-site"}, 403),
            ({"Sec-Fetch-Site": "same-site", "Origin": collector.url}, 403),
        ):
            url = collector.url + "/v1/sql"
            async with session.post(url, data=b"select 1", headers=headers) as answer:
                assert answer.status == expected, headers
            assert await status(session, collector.url + "/readyz", headers) == 200


HOSTS = {
    "localhost:8750": 200,
    "127.0.0.1": 200,
    "[::1]:8750": 200,
    "a.localhost": 200,
    "evil.example": 421,
    "localhost.evil.example:8750": 421,
    "127.0.0.1.evil.example": 421,
    "[": 421,
}


async def test_without_tokens_only_local_host_names_are_answered(start: Any, session: Any) -> None:
    async with start() as collector:
        url = collector.url + "/metrics"
        assert {h: await status(session, url, {"Host": h}) for h in HOSTS} == HOSTS
    async with start(allow_insecure=True) as collector:
        url = collector.url + "/metrics"
        assert {await status(session, url, {"Host": host}) for host in HOSTS} == {200}


async def test_a_proxy_on_this_host_does_not_make_strangers_admins(
    start: Any, session: Any, grant: Any, bearer: Any
) -> None:
    told = [
        {"X-Forwarded-For": "203.0.113.7"},
        {"x-forwarded-for": ""},
        {"X-Real-IP": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
        {"X-Forwarded-Host": "gpus.example"},
    ]
    async with start() as collector:
        url = collector.url + "/metrics"
        assert [await status(session, url, headers) for headers in told] == [403] * len(told)
        async with session.get(url, headers=told[0]) as answer:
            assert "require_tokens" in (await answer.json())["error"]
    reader = bearer(grant(Scope.READ))
    async with start(require_tokens=True) as collector:
        url = collector.url + "/metrics"
        assert {await status(session, url, headers | reader) for headers in told} == {200}
        assert {await status(session, url, headers) for headers in told} == {401}


async def test_denials_are_counted_and_logged_once_a_minute_without_the_token(
    start: Any, session: Any, grant: Any, bearer: Any, clock: Any, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    reader, forged = grant(Scope.READ), "gw_read_aaaaaaaaaaaa_" + "S" * 43
    async with start(require_tokens=True) as collector:
        url = collector.url
        for _ in range(5):
            await status(session, url + "/metrics", {"Authorization": f"Bearer {forged}"})
        await status(session, url + "/v1/ingest", bearer(reader), "POST")
        told = [r for r in caplog.records if "denied" in r.message]
        assert [r.path for r in told] == ["/metrics", "/v1/ingest"]
        clock.advance(60)
        await status(session, url + "/metrics", {"Authorization": f"Bearer {forged}"})
        told = [r for r in caplog.records if "denied" in r.message]
        assert len(told) == 3
        async with session.get(url + "/metrics", headers=bearer(reader)) as answer:
            text = await answer.text()
    assert 'denied_requests_total{reason="unknown"} 6' in text
    assert 'denied_requests_total{reason="scope"} 1' in text
    everything = " ".join(str(vars(r)) for r in caplog.records)
    assert "SSSS" not in everything and reader.text not in everything
