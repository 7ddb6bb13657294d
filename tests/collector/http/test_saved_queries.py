"""Queries are saved under a name, by whom, within bounds, and stay over a restart."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from gpuwarden.access import Scope
from gpuwarden_collector.http.saved_queries import QUERIES_MAX, QUERIES_OF_ONE_MAX, refusal
from gpuwarden_collector.storage.state import SavedQuery

PATH = "/v1/queries"
AT = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_name_is_of_one_token_which_replaces_and_deletes_its_query_and_an_admin_any(
    start: Any, session: Any, grant: Any, bearer: Any, clock: Any
) -> None:
    ada, bob, admin = grant(Scope.READ, comment="ada"), grant(Scope.READ), grant(Scope.ADMIN)

    async def asked(method: str, path: str, token: Any, document: Any = None) -> tuple[int, Any]:
        async with session.request(
            method, collector.url + path, json=document, headers=bearer(token)
        ) as answer:
            return answer.status, await answer.json() if answer.content_length else None

    async with start(require_tokens=True) as collector:
        for sql in ("SELECT 1", "SELECT 'é' -- mine\n"):
            status, _ = await asked("POST", PATH, ada, {"name": "a/b ü", "sql": sql})
            assert status == 201
        # The answers to bob do not depend on what ada has saved.
        one_path, other = PATH + "/a%2Fb%20%C3%BC", PATH + "/x%2Fy%20%C3%BC"
        of_ada = f"?saved_by={ada.id}"
        for path in (one_path, other, one_path + of_ada, other + of_ada):
            status, said = await asked("DELETE", path, bob)
            assert (status, said["error"].split("'")[0]) == (404, "you have saved no query "), path
        status, said = await asked("POST", PATH, bob, {"name": "a/b ü", "sql": "SELECT 2"})
        assert (status, said) == (201, {"name": "a/b ü"})
        assert len((await asked("GET", PATH, ada))[1]["queries"]) == 2
        assert (await asked("DELETE", one_path, bob))[0] == 204
    async with start(require_tokens=True) as collector:
        _, said = await asked("GET", PATH, bob)
        (one,) = said["queries"]
        assert datetime.fromisoformat(one.pop("saved_at")) == clock.now()
        assert one == {
            "name": "a/b ü",
            "sql": "SELECT 'é' -- mine",
            "author": "ada",
            "saved_by": ada.id,
            "mine": False,
        }
        assert (await asked("GET", PATH, ada))[1]["queries"][0]["mine"]
        assert (await asked("DELETE", one_path, admin))[0] == 404
        assert (await asked("DELETE", one_path + of_ada, admin))[0] == 204
        assert (await asked("DELETE", PATH + "/x", admin))[0] == 404
        wrong: Iterable[Any] = (
            None, [], {"name": "x"}, {"name": 5, "sql": "a"}, {"name": "", "sql": "a"},
            {"name": "a\nb", "sql": "a"}, {"name": "n" * 81, "sql": "a"}, {"name": "n", "sql": ""},
            {"name": "n", "sql": "a\0b"}, {"name": "n", "sql": "\ud800"},
            {"name": "n", "sql": "x" * 20_001}, {"name": "n", "sql": "x" * 300_000},
        )  # fmt: skip
        for document in wrong:
            assert (await asked("POST", PATH, ada, document))[0] in (400, 413, 415), document
        async with session.post(
            collector.url + PATH, data='{"name": "n", "sql": "a"}', headers=bearer(ada)
        ) as answer:
            assert answer.status == 415  # what a form of another site's page could send


def test_readers_cannot_fill_the_disk() -> None:
    def saved(by: str, number: int) -> SavedQuery:
        return SavedQuery(by, f"{by}{number}", "SELECT 1", by, AT)

    kept = [saved("ada", number) for number in range(QUERIES_OF_ONE_MAX)]
    assert "delete one first" in str(refusal(saved("ada", 99), kept))
    assert refusal(saved("ada", 7), kept) is None  # in place of the old one
    assert refusal(saved("bob", 1), kept) is None
    full = [saved(f"user{number}", number) for number in range(QUERIES_MAX)]
    assert "200 queries are saved" in str(refusal(saved("bob", 1), full))
