"""The server on a real port."""

import re

import aiohttp
import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.exporter.server import listen_address, serving, takes_gzip


async def get(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_metrics_are_made_anew_at_each_request() -> None:
    pages = iter(["a 1\n", "a 2\n"])
    async with serving("127.0.0.1", 0, lambda: next(pages)) as url:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        assert await get(f"{url}/metrics") == (200, kind, "a 1\n")
        assert await get(f"{url}/metrics") == (200, kind, "a 2\n")


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("gzip;q=0.001", True),
        ("gzip;q=0", False),
        ("gzip; q = 0.00", False),
        ("identity", False),
        ("gzipped", False),
        ("", False),
        (";;,,q=", False),
    ],
)
def test_gzip_is_for_whom_takes_it(accepted: str, taken: bool) -> None:
    assert takes_gzip(accepted) == taken


async def test_a_page_is_compressed_for_whom_takes_it() -> None:
    async with serving("127.0.0.1", 0, lambda: "a 1\n") as url, aiohttp.ClientSession() as session:
        for accepted, encoding in (("gzip", "gzip"), ("identity", None)):
            headers = {"Accept-Encoding": accepted}
            async with session.get(f"{url}/metrics", headers=headers) as answer:
                assert answer.headers.get("Content-Encoding") == encoding
                assert await answer.text() == "a 1\n"


async def test_health_is_told_and_nothing_else_is_there() -> None:
    async with serving("127.0.0.1", 0, lambda: "") as url:
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/other"))[0] == 404
        async with aiohttp.ClientSession() as session, session.post(f"{url}/metrics") as answer:
            assert answer.status == 405


async def test_the_port_is_free_again_afterwards() -> None:
    async with serving("127.0.0.1", 0, lambda: "") as url:
        port = int(url.rpartition(":")[2])
    async with serving("127.0.0.1", port, lambda: "") as url:
        assert (await get(f"{url}/healthz"))[0] == 200


async def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    async with serving("127.0.0.1", 0, lambda: "") as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(StartError) as raised:
            async with serving("127.0.0.1", port, lambda: ""):
                pass
    assert str(raised.value) == (
        f"exporter: 127.0.0.1:{port} is in use by another process:"
        " stop it or choose another port in exporter_listen"
    )


async def test_an_address_that_is_not_ours_is_one_line_too() -> None:
    with pytest.raises(StartError, match="choose another host in exporter_listen"):
        async with serving("192.0.2.1", 0, lambda: ""):
            pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9750", ("127.0.0.1", 9750)),
        ("[::1]:9750", ("::1", 9750)),
        ("gpu-1.example:0", ("gpu-1.example", 0)),
    ],
)
def test_the_exporter_listens_where_its_setting_says(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize(
    "text", ["9750", ":9750", "0.0.0.0", "h:70000", "h:port", "http://h:1", "u@h:1/x"]
)
def test_what_is_no_address_to_listen_on_is_a_line(text: str) -> None:
    with pytest.raises(StartError, match=re.escape(f"exporter_listen = {text} must be HOST:PORT")):
        listen_address(text)


@pytest.mark.parametrize(
    ("host", "named", "status"),
    [
        ("127.0.0.1", "evil.example", 421),
        ("127.0.0.1", "evil.example:9400", 421),
        ("127.0.0.1", "localhost:9400", 200),
        ("127.0.0.1", "127.0.0.1", 200),
        ("localhost", "evil.example", 421),
        ("0.0.0.0", "gpu-1.example:9400", 200),
    ],
)
async def test_on_loopback_no_name_of_the_web_leads_to_the_page(
    host: str, named: str, status: int
) -> None:
    async with serving(host, 0, lambda: "a 1\n") as url, aiohttp.ClientSession() as session:
        port = url.rpartition(":")[2]
        async with session.get(
            f"http://127.0.0.1:{port}/metrics", headers={"Host": named}
        ) as answer:
            assert answer.status == status
