"""Results of GPU tests are rows of a table before the answer is sent; a node's token sends its own alone."""

from typing import Any

from tests.contract.test_gpu_test import RUN

from gpuwarden.access import Scope


async def test_a_node_sends_its_own_results_and_no_others(
    start: Any, grant: Any, bearer: Any, session: Any, clock: Any
) -> None:
    own, other, reader = (
        grant(Scope.INGEST, node="n1"),
        grant(Scope.INGEST, node="n2"),
        grant(Scope.READ),
    )
    document = RUN.document()
    now = clock.now().isoformat()
    document["results"][0] |= {"began_at": now, "ended_at": now}
    async with start(require_tokens=True) as collector:

        async def sent(token: Any, body: Any) -> tuple[int, str]:
            url = f"{collector.url}/v1/gpu-tests"
            async with session.post(url, json=body, headers=bearer(token)) as answer:
                return answer.status, await answer.text()

        for _ in range(2):  # the first answer may have been lost
            assert await sent(own, document) == (201, '{"received": 1}')
        rows = (await collector.querier.query("SELECT node, gpu, test, value, unit FROM gpu_tests", {})).rows  # fmt: skip
        assert [tuple(row) for row in rows] == [("n1", 0, "memory", 0.0, "errors")]
        status, text = await sent(other, document)
        assert status == 403 and "this token is for node n2, not for n1" in text
        assert (await sent(reader, document))[0] == 403
        status, text = await sent(own, {**document, "run": 7})
        assert status == 400 and "run: it must be 12 hexadecimal digits" in text
        count = (await collector.querier.query("SELECT count(*) FROM gpu_tests", {})).rows
        assert [tuple(row) for row in count] == [(1,)]
