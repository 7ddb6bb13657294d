"""Enrolment over HTTP: a node brings its token's hash, once, and whatever else comes is refused in words."""

import json
from typing import Any

from gpuwarden.access import Scope, Token
from gpuwarden_collector.auth.token_file import NAME, edit, load


async def enroll(session: Any, url: str, headers: Any, document: Any) -> tuple[int, Any]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    async with session.post(url + "/v1/enroll", data=body, headers=headers) as answer:
        return answer.status, await answer.json()


def asked(node: Any, token: Token) -> dict[str, Any]:
    return {"node": node, "id": token.id, "sha256": token.digest}


async def test_a_node_can_send_with_the_token_that_it_created(
    start: Any, session: Any, grant: Any, bearer: Any, data_dir: Any
) -> None:
    by, own, other = (
        grant(Scope.ENROLL, uses_left=1),
        Token.new(Scope.INGEST),
        Token.new(Scope.INGEST),
    )
    async with start(require_tokens=True) as collector:
        url = collector.url
        for _ in range(2):  # an answer may be lost
            status, answer = await enroll(session, url, bearer(by), asked("n1", own))
            assert (status, answer) == (201, {"id": own.id, "node": "n1"})
        async with session.get(url + "/v1/token", headers=bearer(own)) as answer:
            assert await answer.json() == {
                "required": True, "id": own.id, "scope": "ingest", "node": "n1", "expires_at": None,
                "team": None, "username": None,
            }  # fmt: skip
        status, answer = await enroll(session, url, bearer(by), asked("n2", other))
        assert (status, "is used up" in answer["error"]) == (409, True)
    assert {e.node for e in load(data_dir / NAME).entries} == {None, "n1"}
    assert own.text.rpartition("_")[2] not in (data_dir / NAME).read_text()


RUBBISH: list[Any] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"x" * 5000,
    {"node": "n1"},
    {"node": "", "id": "a" * 12, "sha256": "0" * 64},
    {"node": "n" * 257, "id": "a" * 12, "sha256": "0" * 64},
    *({"node": n, "id": "a" * 12, "sha256": "0" * 64} for n in ("n\n1", "../../x", "v1 ", "vx;rm")),
    {"node": 5, "id": "a" * 12, "sha256": "0" * 64},
    {"node": "n1", "id": "A" * 12, "sha256": "0" * 64},
    {"node": "n1", "id": "a" * 12, "sha256": "0" * 64 + "\n"},
    {"node": "n1", "id": "a" * 12, "sha256": None},
]


async def test_an_invalid_enrolment_is_refused_and_costs_no_use(
    start: Any, session: Any, grant: Any, bearer: Any, data_dir: Any
) -> None:
    by = grant(Scope.ENROLL, uses_left=1)
    async with start(require_tokens=True) as collector:
        for document in RUBBISH:
            status, answer = await enroll(session, collector.url, bearer(by), document)
            assert (status, "error" in answer) == (400, True), document
    assert [e.uses_left for e in load(data_dir / NAME).entries] == [1]


async def test_a_node_that_has_rows_enrolls_only_by_an_enrolment_for_known_nodes(
    start: Any, session: Any, grant: Any, bearer: Any, wire: Any, post: Any
) -> None:
    every, new, known = (
        grant(Scope.INGEST),
        grant(Scope.ENROLL, uses_left=9),
        grant(Scope.ENROLL, uses_left=9, known_nodes=True),
    )
    own = Token.new(Scope.INGEST)
    async with start(require_tokens=True) as collector:
        rows = wire.zstd(wire.stream("gpu_samples", [wire.gpu_row(node="n1")]))
        assert (await post(collector.url, rows, headers=bearer(every)))[0] == 204
        status, answer = await enroll(session, collector.url, bearer(new), asked("n1", own))
        assert (status, "has rows already" in answer["error"]) == (409, True)
        for by in (new, known):
            status, answer = await enroll(session, collector.url, bearer(by), asked("N1", own))
            assert (status, "from the node n1 in case alone" in answer["error"]) == (409, True)
        status, answer = await enroll(session, collector.url, bearer(known), asked("n1", own))
        assert (status, answer) == (201, {"id": own.id, "node": "n1"})
    async with start(require_tokens=True) as collector:  # as the first answer may have been lost
        status, _ = await enroll(session, collector.url, bearer(new), asked("n1", own))
        assert status == 201


async def test_without_required_tokens_there_is_nothing_to_enroll(start: Any, session: Any) -> None:
    async with start() as collector:
        status, answer = await enroll(
            session, collector.url, {}, asked("n1", Token.new(Scope.INGEST))
        )
        assert (status, "requires no tokens" in answer["error"]) == (409, True)
        async with session.get(collector.url + "/v1/token") as found:
            assert await found.json() == {"required": False}


async def test_any_client_gets_the_authoritys_certificate(
    start: Any, session: Any, certified: Any
) -> None:
    async with start(require_tokens=True, tls_ca=certified.ca) as collector:
        async with session.get(collector.url + "/v1/ca") as answer:
            assert await answer.read() == certified.ca.read_bytes()
        certified.ca.unlink()
        async with session.get(collector.url + "/v1/ca") as answer:
            assert answer.status == 503
    async with (
        start(require_tokens=True) as collector,
        session.get(collector.url + "/v1/ca") as answer,
    ):
        assert answer.status == 404


async def test_a_browser_logs_in_once_and_its_cookie_is_judged_each_time(
    start: Any, session: Any, grant: Any, data_dir: Any
) -> None:
    reading, sending = grant(Scope.READ), grant(Scope.INGEST)
    page = {"Accept": "text/html,*/*;q=0.8"}
    async with start(require_tokens=True) as collector:
        url = collector.url

        async def asked(method: str, path: str, form: Any = None, **headers: str) -> Any:
            async with session.request(
                method, url + path, data=form, headers=headers, allow_redirects=False
            ) as answer:
                await answer.read()
                return answer

        sent = await asked("GET", "/metrics?x=1", **page)
        assert (sent.status, sent.headers["Location"]) == (303, "/login?next=%2Fmetrics%3Fx%3D1")
        assert (await asked("GET", "/metrics")).status == 401  # a script is not a browser

        for token, why in (
            ("", "malformed"),
            (sending.text, "scope"),
            (f"gw_read_{'a' * 12}_{'b' * 43}", "unknown"),
        ):
            answer = await asked("POST", "/login", {"token": token, "next": "/a?b=c"})
            assert (answer.status, "Set-Cookie" in answer.headers) == (303, False)
            assert answer.headers["Location"] == f"/login?next=%2Fa%3Fb%3Dc&why={why}"
        evil_paths = ("//evil.example", "/\\evil.example", "https://evil.example", "")
        for after in (*evil_paths, "/\t/evil.example", "/\n/evil.example", "/a\r\nSet-Cookie: b=c"):
            answer = await asked("POST", "/login", {"token": f" {reading.text}\n", "next": after})
            assert (answer.status, answer.headers["Location"]) == (303, "/")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Secure" not in cookie
        proxied = {"X-Forwarded-Proto": "https"}
        answer = await asked("POST", "/login", {"token": reading.text}, **proxied)
        assert "Secure" in answer.headers["Set-Cookie"]
        shown = {"Cookie": cookie.partition(";")[0]}
        assert (await asked("GET", "/metrics", **shown)).status == 200
        # Another site's page has the cookie sent by no browser of today; if one did:
        evil = {**shown, "Sec-Fetch-Site": "cross-site"}
        assert (await asked("POST", "/v1/sql", b"SELECT 1", **evil)).status == 403
        assert (await asked("POST", "/login", {"token": reading.text}, **evil)).status == 403
        assert (await asked("POST", "/logout", **evil)).status == 403
        for origin in ("null", "http://evil.example", f"{url}.evil.example"):
            assert (await asked("POST", "/logout", **shown, Origin=origin)).status == 403
        both = {**shown, "Authorization": f"Bearer {sending.text}"}
        assert (await asked("GET", "/metrics", **both)).status == 403  # the header is what counts

        edit(data_dir / NAME, lambda book: (book.revoked([reading.id]), None))
        collector.reload()
        assert (await asked("GET", "/metrics", **shown)).status == 401
        gone = await asked("POST", "/logout", **shown)
        assert 'gpuwarden=""' in gone.headers["Set-Cookie"]
        assert (await asked("POST", "/login", b"x" * 5000)).status == 400
