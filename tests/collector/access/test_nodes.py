"""A node's token sends that node's rows and no others', alone and among others' batches."""

import asyncio
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.access import Scope
from gpuwarden_collector.access.nodes import NodeColumns
from gpuwarden_collector.decode import Decoded, Part, Refused

NODES = st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=6)


@given(st.lists(NODES, max_size=5), st.booleans())
def test_a_batch_passes_if_all_its_rows_are_of_its_node(batches: list, is_chunked: bool) -> None:
    """Batches in one table, as they come when decoded together."""
    chunks = [pa.array(nodes, pa.string()) for nodes in batches]
    column = pa.chunked_array(chunks, pa.string())
    whole = pa.table({"node": column if is_chunked else column.combine_chunks()})
    columns, start = NodeColumns(), 0
    for nodes in batches:
        batch = Decoded({"gpu_samples": Part(whole, start, len(nodes))}, 0)
        refusal = columns.refusal(batch, "n1")
        assert (refusal is None) == (set(nodes) <= {"n1"})
        if isinstance(refusal, Refused):
            assert refusal.status == 403
            other = next(n for n in nodes if n != "n1")
            assert f"for node n1, and the batch has rows of node {other}" in refusal.reason
        start += len(nodes)


async def test_rows_of_another_node_are_refused_counted_and_not_stored(
    start: Any, grant: Any, bearer: Any, wire: Any, post: Any, session: Any
) -> None:
    own, fleet = grant(Scope.INGEST, node="n1"), grant(Scope.INGEST)
    good = [wire.gpu_row(0, 0)]
    bad = [wire.gpu_row(0, 1), wire.gpu_row(1, 1, node="n2")]
    async with start(require_tokens=True) as collector:

        async def send(number: int, rows: Any, token: Any) -> tuple[int, str]:
            body = wire.zstd(wire.stream("gpu_samples", rows))
            status, text, _ = await post(collector.url, body, number, headers=bearer(token))
            return status, text

        # At once, so that they are looked at together.
        answers = await asyncio.gather(
            send(1, good, own), send(2, bad, own), send(3, bad, fleet), send(4, good[:1], own)
        )
        assert [status for status, _ in answers] == [204, 403, 204, 204]
        assert "for node n1, and the batch has rows of node n2" in answers[1][1]
        assert collector.stats.denied == {"node": 1}
        assert collector.stats.refused == {"403": 1}
