"""Addresses, and what the bytes of an answer mean however they come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_agent.ship.http1 import (
    ANSWER_BYTES_MAX,
    HEAD_BYTES_MAX,
    Http1Codec,
    HttpAddress,
    HttpResponse,
    NoAnswerError,
    may_ask_again,
)

ADDRESS = HttpAddress("collector.example", 8750, is_tls=False)


def asked(address: HttpAddress = ADDRESS) -> Http1Codec:
    codec = Http1Codec(address, "agent/1")
    codec.request("/v1/ingest", {}, b"body")
    return codec


def answer_to(raw: bytes, *, ends: bool = False) -> tuple[HttpResponse | None, Http1Codec]:
    codec = asked()
    answer = codec.receive(raw)
    if ends and answer is None:
        answer = codec.receive(b"")
    return answer, codec


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://collector.example:8750", ADDRESS),
        ("http://collector.example:8750/", ADDRESS),
        ("http://10.0.0.1", HttpAddress("10.0.0.1", 80, False)),
        ("https://Collector.Example", HttpAddress("collector.example", 443, True)),
        ("https://h/a b/ü/%41/", HttpAddress("h", 443, True, "/a%20b/%C3%BC/%41")),
        ("http://[2001:db8::1]:1", HttpAddress("2001:db8::1", 1, False)),
        ("http://grün.example", HttpAddress("xn--grn-ioa.example", 80, False)),
        ("http://u:p%40s@h", HttpAddress("h", 80, False, "", "Basic dTpwQHM=")),
        ("http://u@h", HttpAddress("h", 80, False, "", "Basic dTo=")),
    ],
)
def test_a_url_gives_host_port_path_and_credentials(url: str, address: HttpAddress) -> None:
    assert HttpAddress.parse(url) == address


@pytest.mark.parametrize(
    "url",
    ["", "collector:8750", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://h?q=1"]
    + ["http://h/#f", "http://a..b", "http://" + "a" * 64, "http://a b", "http://[::1", "//h"],
)
def test_what_is_no_address_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match="."):
        HttpAddress.parse(url)


@given(st.text(max_size=40))
def test_no_text_does_anything_else(text: str) -> None:
    for url in (text, f"http://{text}", f"https://h/{text}", f"http://{text}@h:1"):
        try:
            address = HttpAddress.parse(url)
        except ValueError:
            continue
        head = Http1Codec(address, "agent").request("/v1/ingest", {}, b"")
        assert head.isascii()
        assert head.count(b"\r\n") == 3 + bool(address.authorization) + 2


@pytest.mark.parametrize(
    ("address", "authority"),
    [
        (ADDRESS, "collector.example:8750"),
        (HttpAddress("h", 443, True), "h"),
        (HttpAddress("h", 80, True), "h:80"),
        (HttpAddress("fe80::1%eth0", 80, False), "[fe80::1]"),
    ],
)
def test_the_host_header_has_the_port_where_it_is_not_the_usual(
    address: HttpAddress, authority: str
) -> None:
    assert address.authority == authority


def test_a_password_is_sent_and_never_shown() -> None:
    address = HttpAddress.parse("http://user:secret@h/prefix")
    assert address.shown("/v1/ingest") == "http://h/prefix/v1/ingest"
    head = Http1Codec(address, "agent/1").request("/v1/ingest", {"X-Y": "z"}, b"four")
    assert head == (
        b"POST /prefix/v1/ingest HTTP/1.1\r\nHost: h\r\nUser-Agent: agent/1\r\n"
        b"Authorization: Basic dXNlcjpzZWNyZXQ=\r\nX-Y: z\r\nContent-Length: 4\r\n\r\n"
    )


NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\nRetry-After: 3\r\nContent-Length: 6\r\n\r\nreason"
CHUNKED = b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nrea\r\n3\r\nson\r\n0\r\nX: y\r\n\r\n"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
CUT = b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\nreason"
OLD = b"HTTP/1.0 200 OK\r\n\r\nreason"


@pytest.mark.parametrize(
    ("raw", "status", "body", "is_reusable"),
    [
        (NO_CONTENT, 204, b"", True),
        (REFUSED, 400, b"reason", True),
        (CHUNKED, 503, b"reason", True),
        (GO_ON + GO_ON + REFUSED, 400, b"reason", True),
        (CUT, 502, b"reason", False),
        (OLD, 200, b"reason", False),
        (NO_CONTENT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 204, b"", False),
        (NO_CONTENT + b"HTTP", 204, b"", False),
    ],
)
@given(data=st.data())
def test_an_answer_means_the_same_however_it_is_cut(
    raw: bytes, status: int, body: bytes, is_reusable: bool, data: st.DataObject
) -> None:
    codec, answer, rest = asked(), None, raw
    while rest and answer is None:
        size = data.draw(st.integers(1, len(rest)))
        answer, rest = codec.receive(rest[:size]), rest[size:]
    if answer is None:
        answer = codec.receive(b"")
    assert answer is not None
    assert (answer.status, answer.body) == (status, body)
    if not rest:
        assert codec.is_reusable is is_reusable


def test_a_reused_connection_begins_again() -> None:
    answer, codec = answer_to(REFUSED)
    assert answer == HttpResponse(400, {"retry-after": "3", "content-length": "6"}, b"reason")
    assert codec.request("/v1/ingest", {}, b"more").startswith(b"POST /v1/ingest")
    assert not codec.has_answer_begun
    assert codec.receive(NO_CONTENT) == HttpResponse(204, {}, b"")


def test_a_long_answer_is_cut_and_its_connection_given_up() -> None:
    answer, codec = answer_to(
        b"HTTP/1.1 400 No\r\nContent-Length: 999999\r\n\r\n" + b"x" * (ANSWER_BYTES_MAX + 1)
    )
    assert answer is not None
    assert answer.body == b"x" * ANSWER_BYTES_MAX
    assert not codec.is_reusable


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "the server closed the connection without an answer"),
        (GO_ON, "in the middle of its answer"),
        (REFUSED[:-1], "in the middle of its answer"),
        (REFUSED[:30], "in the middle of its answer"),
        (CHUNKED[:-2], "in the middle of its answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "what it answers is not HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n", "what it answers is not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "what it answers is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "what it answers is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2 * HEAD_BYTES_MAX, "what it answers is not HTTP"),
    ],
)
def test_half_an_answer_is_none(raw: bytes, why: str) -> None:
    with pytest.raises(NoAnswerError, match=why):
        answer_to(raw, ends=True) if raw else asked().receive(b"")


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6))
def test_no_garbage_does_anything_else(pieces: list[bytes]) -> None:
    codec = asked()
    try:
        for piece in [b"HTTP/1.1 ", *pieces, b""]:
            if codec.receive(piece) is not None:
                return
    except NoAnswerError:
        return
    raise AssertionError("neither an answer nor none")


@pytest.mark.parametrize(
    ("was_kept", "has_answer_begun", "again"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_only_a_kept_connection_that_said_nothing_is_worth_another(
    was_kept: bool, has_answer_begun: bool, again: bool
) -> None:
    assert may_ask_again(was_kept=was_kept, has_answer_begun=has_answer_begun) is again
