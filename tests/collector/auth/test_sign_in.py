"""A person signs in at a provider of OpenID Connect or by a proxy; nothing that is forged, old or of others does."""

import base64
import hmac
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import RSAKey
from tests.collector.auth.provider import CLIENT, SECRET, Provider, providing
from tests.each import each

from gpuwarden.access import COOKIE, Scope
from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.auth import oidc as module
from gpuwarden_collector.auth.access_file import (
    AccessFileError,
    OidcSettings,
    load_access,
    person_id,
)
from gpuwarden_collector.auth.oidc import (
    AFTER_CHARACTERS_MAX,
    KEYS_AGAIN_S,
    LEEWAY_S,
    PENDING_S,
    BegunSignIn,
    SignInError,
    SignIns,
)
from gpuwarden_collector.auth.token_file import NAME, load
from gpuwarden_collector.auth.token_store import SESSIONS_MAX
from gpuwarden_collector.daemon import Collector

RULES = """
[teams.vision]
nodes = ["v*"]

[groups.ops]
role = "admin"
[groups.readers]
role = "viewer"
team = "vision"
[groups.leads]
role = "operator"
team = "vision"
"""
BACK = "https://collector.example/login/callback"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with providing() as found:
        yield found


@pytest.fixture
def oidc(provider: Provider, tmp_path: Path) -> OidcSettings:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    return OidcSettings(provider.url, CLIENT, secret, BACK)


@pytest.fixture
def sign_ins(oidc: OidcSettings) -> SignIns:
    return SignIns(oidc, SystemClock())


async def test_a_person_signs_in_once_with_each_code(sign_ins: SignIns, provider: Provider) -> None:
    url, cookie = await sign_ins.begin("/money")
    said = provider.grant(url)
    person, after = await sign_ins.end(cookie, said)
    assert (person.name, person.groups, after) == ("ada", frozenset({"ops"}), "/money")
    assert person.id == person_id(provider.url, "s1") != person_id(provider.url, "s2")
    with pytest.raises(SignInError, match="invalid_grant"):
        await sign_ins.end(cookie, said)


async def test_a_code_serves_only_the_sign_in_that_it_was_made_for(
    sign_ins: SignIns, provider: Provider
) -> None:
    first, _ = await sign_ins.begin("/")
    url, cookie = await sign_ins.begin("/")
    with pytest.raises(SignInError, match="another browser"):
        await sign_ins.end(cookie, provider.grant(first))
    code = provider.grant(first)["code"]
    with pytest.raises(SignInError, match="invalid_grant"):
        await sign_ins.end(cookie, provider.grant(url) | {"code": code})


SPOILED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("aud", {"aud": "another"}), ("aud", {"aud": ["another", "third"]}), ("another client", {"aud": [CLIENT, "other"]}),
    ("another client", {"azp": "other"}), ("iss", {"iss": "http://127.0.0.1:1"}), ("nonce", {"nonce": "of another sign-in"}),
    ("exp", {"exp": 1}), ("exp", {"exp": "soon"}), ("in the future", {"iat": 99_999_999_999}), ("not yet valid", {"nbf": 99_999_999_999}),
    ("subject", {"sub": ""}), ("sub", {"sub": 7}), ("exp", {"exp": None}), ("nonce", {"nonce": None}), ("aud", {"aud": None}),
)  # fmt: skip


async def test_claims_of_others_and_of_other_times_sign_nobody_in(
    sign_ins: SignIns, provider: Provider
) -> None:
    for word, changed in SPOILED:

        def spoil(claims: dict[str, Any], changed: dict[str, Any] = changed) -> None:
            claims.update(changed)
            for name in [name for name, value in changed.items() if value is None]:
                del claims[name]

        provider.spoil = spoil
        url, cookie = await sign_ins.begin("/")
        with pytest.raises(SignInError, match=word) as found:
            await sign_ins.end(cookie, provider.grant(url))
        assert found.value.why == "refused", changed


async def test_clocks_may_differ_by_a_minute(oidc: OidcSettings, provider: Provider) -> None:
    for ahead_s, is_fine in ((-50, True), (50, True), (-130, False), (200, False)):
        clock = ManualClock(SystemClock().now() - timedelta(seconds=ahead_s))
        sign_ins = SignIns(oidc, clock)
        url, cookie = await sign_ins.begin("/")
        if is_fine:
            assert (await sign_ins.end(cookie, provider.grant(url)))[0].name == "ada"
            continue
        with pytest.raises(SignInError):
            await sign_ins.end(cookie, provider.grant(url))


async def test_signatures_of_other_kinds_and_keys_are_refused(
    sign_ins: SignIns, provider: Provider
) -> None:
    other = RSAKey.generate_key(2048, {"kid": "k1"})
    public = provider.key.as_pem(private=False)
    none = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
    forged = (
        lambda claims: jwt.encode({"alg": "RS256", "kid": "k1"}, claims, other),
        lambda claims: _by_secret(provider.signed(claims), public),
        lambda claims: jwt.encode({"alg": "RS256", "kid": "k9"}, claims, other),
        lambda claims: f"{none}.{provider.signed(claims).split('.')[1]}.",
        lambda claims: provider.signed(claims)[:-8] + "AAAAAAAA",
        lambda claims: "not.a.token",
        lambda claims: "",
    )
    for sign in forged:
        provider.sign = sign
        url, cookie = await sign_ins.begin("/")
        with pytest.raises(SignInError) as found:
            await sign_ins.end(cookie, provider.grant(url))
        assert found.value.why == "refused"


def _by_secret(token: str, secret: bytes) -> str:
    """The token signed with HMAC, by a secret that everybody knows."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').rstrip(b"=")
    text = head + b"." + token.split(".")[1].encode()
    mac = base64.urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
    return (text + b"." + mac).decode()


async def test_new_keys_of_the_provider_are_read_and_old_ones_end(
    oidc: OidcSettings, provider: Provider
) -> None:
    clock = ManualClock(SystemClock().now())
    sign_ins = SignIns(oidc, clock)

    async def signs_in() -> bool:
        url, cookie = await sign_ins.begin("/")
        try:
            await sign_ins.end(cookie, provider.grant(url))
        except SignInError:
            return False
        return True

    assert await signs_in()
    old, provider.key = provider.key, RSAKey.generate_key(2048, {"kid": "k2"})
    provider.keys = [provider.key]
    assert not await signs_in()  # keys that were read a moment ago are not read again
    clock.advance(KEYS_AGAIN_S)
    assert await signs_in()
    provider.key = old
    clock.advance(KEYS_AGAIN_S)
    assert not await signs_in()
    assert provider.asked.count("/keys") <= 4


async def test_a_provider_that_fails_is_one_line(
    oidc: OidcSettings, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROVIDER_S", 0.2)
    discovery = "/.well-known/openid-configuration"
    for path, answer, expected in (
        (discovery, web.Response(text="<html>"), "without JSON"),
        (discovery, web.json_response({"issuer": "https://other"}), "of issuer 'https://other'"),
        (
            discovery,
            web.json_response({"issuer": provider.url, "token_endpoint": "http://elsewhere"}),
            "no https:// URL",
        ),
        (
            discovery,
            web.Response(status=302, headers={"Location": "http://169.254.169.254/"}),
            "answered 302",
        ),
        ("/keys", web.json_response({"keys": [{"kty": "RSA"}]}), "keys cannot be read"),
        ("/token", web.Response(body=b"[" * 2_000_000), "without JSON"),
        ("/token", web.json_response({"access_token": "x"}), "without an ID token"),
        ("/token", web.json_response({}, status=500), "answered 500"),
    ):
        sign_ins = SignIns(oidc, SystemClock())
        provider.answers = {path: answer}
        with pytest.raises(SignInError, match=expected) as found:
            url, cookie = await sign_ins.begin("/")
            await sign_ins.end(cookie, provider.grant(url))
        assert found.value.why == "provider" and "\n" not in str(found.value)
    provider.answers = {}
    for path in (discovery, "/token", "/keys"):
        sign_ins = SignIns(oidc, SystemClock())
        provider.hangs = {path}
        with pytest.raises(SignInError, match="did not answer within 0.2 s"):
            url, cookie = await sign_ins.begin("/")
            await sign_ins.end(cookie, provider.grant(url))


async def test_another_collector_ends_a_sign_in(oidc: OidcSettings, provider: Provider) -> None:
    url, cookie = await SignIns(oidc, SystemClock()).begin("/money")
    person, after = await SignIns(oidc, SystemClock()).end(cookie, provider.grant(url))
    assert (person.name, after) == ("ada", "/money")


async def test_a_sign_in_is_over_after_ten_minutes_and_none_is_of_the_future(
    oidc: OidcSettings, provider: Provider
) -> None:
    for passed_s, is_fine in ((PENDING_S - 1, True), (PENDING_S, False), (-LEEWAY_S - 1, False)):
        now = SystemClock().now()
        url, cookie = await SignIns(oidc, ManualClock(now - timedelta(seconds=passed_s))).begin("/")
        ending = SignIns(oidc, ManualClock(now)).end(cookie, provider.grant(url))
        if is_fine:
            assert (await ending)[0].name == "ada"
        else:
            with pytest.raises(SignInError, match="too old"):
                await ending


async def test_a_changed_cookie_ends_no_sign_in(sign_ins: SignIns, provider: Provider) -> None:
    url, cookie = await sign_ins.begin("/money")
    other = BegunSignIn.new("/money", 0)
    secret, began, after = cookie.split(".")
    for changed in (
        f"{secret}.{int(began) + 1}.{after}",
        f"{secret}.{began}.{other.cookie.split('.')[2]}A",
        f"{other.secret}.{began}.{after}",
        f"{secret}.{began}", f"{secret}.{began}.", f"{secret}.{began}.A", f"{secret}.{began}._w",
        f"{secret}.{'9' * 13}.{after}", f"{secret}.-1.{after}", f".{began}.{after}", "", cookie + "\n", "é",
    ):  # fmt: skip
        with pytest.raises(SignInError) as raised:
            await sign_ins.end(changed, provider.grant(url))
        assert raised.value.why == "over", changed
    for said in ({"state": ""}, {"state": "é\ud800"}, {}):
        with pytest.raises(SignInError) as raised:
            await sign_ins.end(cookie, {"code": "x", **said})
        assert raised.value.why == "over", said


async def test_what_passes_through_the_provider_has_no_secret_of_the_browser(
    sign_ins: SignIns, provider: Provider
) -> None:
    url, cookie = await sign_ins.begin("/")
    state = provider.grant(url)["state"]
    begun = BegunSignIn.of_cookie(cookie, state, int(SystemClock().now().timestamp()))
    assert len({begun.secret, begun.state, begun.nonce, begun.verifier}) == 4
    assert begun.secret not in url and begun.verifier not in url
    assert begun.secret not in repr(begun)


async def test_a_long_path_does_not_make_the_cookie_too_large(sign_ins: SignIns) -> None:
    _, cookie = await sign_ins.begin("/" + "x" * (AFTER_CHARACTERS_MAX - 1))
    assert 2_000 < len(cookie) < 4_000
    _, cookie = await sign_ins.begin("/" + "x" * AFTER_CHARACTERS_MAX)
    assert len(cookie) < 100


async def test_groups_come_from_userinfo_of_the_same_person(
    sign_ins: SignIns, provider: Provider
) -> None:
    del provider.claims["groups"]
    provider.userinfo = {"sub": "s1", "groups": ["readers"]}
    url, cookie = await sign_ins.begin("/")
    assert (await sign_ins.end(cookie, provider.grant(url)))[0].groups == {"readers"}
    provider.userinfo = {"sub": "s2", "groups": ["ops"]}
    url, cookie = await sign_ins.begin("/")
    with pytest.raises(SignInError, match="another person"):
        await sign_ins.end(cookie, provider.grant(url))


# --- through a collector


class Browser:
    """A browser's cookies, without its page."""

    def __init__(self, collector: Collector, provider: Provider) -> None:
        self.url, self.provider = collector.url, provider
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def get(self, path: str, **more: Any) -> tuple[int, str, Any]:
        async with self.session.get(self.url + path, allow_redirects=False, **more) as answer:
            return answer.status, await answer.text(), answer.headers

    async def signs_in(self, after: str = "/v1/token") -> tuple[int, str, Any]:
        """The answer of the callback."""
        status, _, headers = await self.get(f"/login/sso?next={after}")
        assert status == 303, headers
        return await self.get("/login/callback", params=self.provider.grant(headers["Location"]))

    async def whoami(self) -> dict[str, Any]:
        return dict(json.loads((await self.get("/v1/token"))[1]))


@pytest.fixture
async def browser(
    start: Any, provider: Provider, oidc: OidcSettings, tmp_path: Path
) -> AsyncIterator[Browser]:
    access = tmp_path / "access.toml"
    access.write_text(
        RULES
        + f"""
[oidc]
issuer = "{provider.url}"
client_id = "{CLIENT}"
client_secret_file = "{oidc.client_secret_file}"
redirect_url = "{BACK}"
session_seconds = 3600
[proxy]
addresses = ["127.0.0.2/32"]
"""
    )
    async with start(require_tokens=True, access_file=access, clock=SystemClock()) as collector:
        found = Browser(collector, provider)
        yield found
        await found.session.close()


async def test_who_has_signed_in_has_the_rights_of_the_best_group_until_the_session_ends(
    browser: Browser, provider: Provider, data_dir: Path
) -> None:
    assert (await browser.get("/v1/token"))[0] == 401
    provider.claims["groups"] = ["readers", "leads", "unknown"]
    status, text, headers = await browser.signs_in()
    assert status == 200 and 'url=/v1/token"' in text
    kept = headers.getall("Set-Cookie")
    assert any(COOKIE in one and "HttpOnly" in one and "SameSite=Strict" in one for one in kept)
    found = await browser.whoami()
    assert (
        found["scope"] == Scope.OPERATE and found["team"] == "vision" and found["username"] == "ada"
    )
    [entry] = load(data_dir / NAME).entries
    assert entry.comment == "ada" and entry.first_id == person_id(provider.url, "s1")
    assert entry.expires_at is not None
    assert entry.expires_at - entry.created_at == timedelta(hours=1)


async def test_a_sign_in_leads_only_to_pages_of_this_collector_and_comes_back_to_it(
    browser: Browser,
) -> None:
    for after in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "%09/x",
        "x%22%20onload=%22",
    ):
        _, text, _ = await browser.signs_in(after)
        assert 'url=/"' in text and "evil" not in text
    _, text, _ = await browser.signs_in("/a%22%3E%3Cscript%3E")
    assert "<script>" not in text
    for name in ("Host", "X-Forwarded-Host", "X-Forwarded-Proto"):
        _, _, headers = await browser.get("/login/sso", headers={name: "evil.example"})
        assert parse_qs(urlsplit(headers["Location"]).query)["redirect_uri"] == [BACK]


async def test_who_is_in_no_group_refused_or_another_browser_gets_no_session(
    browser: Browser, provider: Provider, data_dir: Path
) -> None:
    provider.claims["groups"] = ["unknown"]
    status, _, headers = await browser.signs_in()
    assert (status, headers["Location"]) == (303, "/login?next=%2F&why=sso_groups")
    _, _, headers = await browser.get("/login/sso")
    said = provider.grant(headers["Location"])
    _, _, headers = await browser.get(f"/login/callback?state={said['state']}&error=access_denied")
    assert headers["Location"].endswith("why=sso_refused")
    provider.claims["groups"] = ["ops"]
    _, _, headers = await browser.get("/login/sso")
    said = provider.grant(headers["Location"])
    browser.session.cookie_jar.clear()
    _, _, headers = await browser.get("/login/callback", params=said)
    assert headers["Location"].endswith("why=sso_over")
    assert (await browser.get("/v1/token"))[0] == 401
    assert load(data_dir / NAME).entries == []


async def test_sessions_are_few_and_end_one_by_one_or_all(
    browser: Browser, provider: Provider, data_dir: Path
) -> None:
    for _ in range(SESSIONS_MAX + 3):
        await browser.signs_in()
    assert len(load(data_dir / NAME).entries) == SESSIONS_MAX
    async with browser.session.post(browser.url + "/logout", allow_redirects=False) as answer:
        assert answer.status == 303
    assert len(load(data_dir / NAME).entries) == SESSIONS_MAX - 1
    assert (await browser.get("/v1/token"))[0] == 401
    await browser.signs_in()
    provider.claims["sub"] = "s2"
    other = Browser.__new__(Browser)
    other.url, other.provider = browser.url, provider
    other.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    await other.signs_in()
    async with browser.session.post(
        browser.url + "/logout?everywhere=1", allow_redirects=False
    ) as answer:
        assert answer.status == 303
    assert [entry.person for entry in load(data_dir / NAME).entries] == [
        person_id(provider.url, "s2")
    ]
    assert (await other.whoami())["username"] == "ada"
    await other.session.close()


NOBODY: tuple[tuple[list[str], list[str]], ...] = (
    ([""], ["ops"]), (["  "], ["ops"]), (["ada", "grace"], ["ops"]), (["ada", ""], ["ops"]), (["ada, grace"], ["ops"]),
    (["a\tda"], ["ops"]), (["\u200b"], ["ops"]), (["\xa0"], ["ops"]), (["a\u202eda"], ["ops"]), (["a" * 201], ["ops"]),
    (["ada"], ["ops", "readers"]), (["ada"], ["ops", ""]), (["ada"], ["ops,\u200b"]), (["ada"], ["o\tps, ops"]),
)  # fmt: skip
"""Names and groups of a proxy that names nobody or several."""


async def test_a_proxy_is_believed_by_its_address_alone_and_if_it_names_one(
    browser: Browser,
) -> None:
    named = {"X-Forwarded-User": "grace", "X-Forwarded-Groups": "other, ops"}
    assert (await browser.get("/v1/token", headers=named))[0] == 401
    connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with aiohttp.ClientSession(connector=connector) as proxy:

        async def asked(**headers: str) -> tuple[int, Any]:
            async with proxy.get(browser.url + "/v1/token", headers=headers) as answer:
                return answer.status, await answer.json()

        status, found = await asked(**named)
        assert (status, found["scope"], found["username"]) == (200, "admin", "grace")
        status, found = await asked(**{**named, "X-Forwarded-Groups": "readers"})
        assert (found["scope"], found["team"]) == ("read", "vision")
        assert (await asked(**{**named, "X-Forwarded-Groups": "none"}))[0] == 403
        assert (await asked(**{"X-Forwarded-User": "grace"}))[0] == 403
        assert (await asked(**{"X-Forwarded-Groups": "ops"}))[0] == 401
        assert (await asked(**{"X-Forwarded-User": "ada", "X-Forwarded-Groups": " , "}))[0] == 403
        for names, groups in NOBODY:
            headers = [("X-Forwarded-User", name) for name in names]
            headers += [("X-Forwarded-Groups", group) for group in groups]
            async with proxy.get(browser.url + "/v1/token", headers=headers) as answer:
                assert answer.status == 401, (names, groups, await answer.text())


# --- the file


@each("text, expected", [
    ("[teams.vision", "Expected ']'"),
    ("[team.vision]", "unknown field `team`"),
    ("[teams.vision]\nnode = ['x']", "unknown field `node`"),
    ("[teams.vision]\nnodes = 'x'", "Expected `array`"),
    ("[teams.'a b']", "matching regex"),
    ("[groups.x]\nrole = 'root'", "must be one of viewer, editor, operator, admin"),
    ("[groups.x]\nrole = 'viewer'\nteam = 'none'", "there is no team 'none'"),
    ("[teams.a]\n[groups.x]\nrole = 'admin'\nteam = 'a'", "admin is for all teams"),
    ("[oidc]\nissuer = 'https://sso.example'\nclient_id = 'x'", 'oidc.redirect_url is missing: set it to "https://COLLECTOR/login/callback"'),
    ("[oidc]\nissuer = 'https://sso.example'\nclient_id = 'x'\nredirect_url = 'http://c.example/login/callback'", "must be an https:// URL"),
    ("[oidc]\nissuer = 'http://sso.example'\nclient_id = 'x'\nredirect_url = 'https://c'", "must be an https:// URL"),
    ("[oidc]\nissuer = 'http://localhost.evil.example'\nclient_id = 'x'\nredirect_url = 'https://c'", "must be an https:// URL"),
    ("[oidc]\nissuer = 'https://sso.example'\nclient_id = 'x'\nredirect_url = 'https://c'\nscopes = ['email']", "must have openid"),
    ("[proxy]\naddresses = ['10.0.0.300']", "does not appear to be"),
    ("[proxy]\naddresses = []", "is empty"),
    ("[proxy]\naddresses = ['0.0.0.0/0', 7]", "Expected `str`"),
])  # fmt: skip
def test_a_wrong_file_is_one_line_with_its_path(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "access.toml"
    path.write_text(text)
    with pytest.raises(AccessFileError) as found:
        load_access(path)
    assert (
        expected in str(found.value)
        and str(path) in str(found.value)
        and "\n" not in str(found.value)
    )


def test_an_empty_team_has_the_nodes_of_its_label(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text("[teams.vision]\n[teams.speech]\nusers = ['ada']\n")
    teams = load_access(path).teams
    assert teams["vision"].labels == (("team", "vision"),) and teams["speech"].labels == ()


async def test_a_collector_that_lets_everybody_in_signs_nobody_in(
    start: Any, tmp_path: Path
) -> None:
    access = tmp_path / "access.toml"
    access.write_text(
        "[oidc]\nissuer = 'https://sso.example'\nclient_id = 'x'\nredirect_url = 'https://c/login/callback'\n"
    )
    with pytest.raises(StartError, match="set require_tokens = true"):
        async with start(access_file=access):
            pass
