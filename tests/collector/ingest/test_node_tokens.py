"""A node's token sends that node's rows and no others', alone and among others' batches."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.access import Scope, Token
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.ingest.decode import BatchRows, Decoded, RefusedBody
from gpuwarden_collector.ingest.node_owners import NodeColumns
from gpuwarden_collector.ingest.writer import load_known
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

NODES = st.lists(st.sampled_from(["n1", "n2", "n3"]), max_size=6)


@given(st.lists(NODES, max_size=5), st.booleans())
def test_a_batch_passes_if_all_its_rows_are_of_its_node(batches: list, is_chunked: bool) -> None:
    """Batches in one table, as they come when decoded together."""
    chunks = [pa.array(nodes, pa.string()) for nodes in batches]
    column = pa.chunked_array(chunks, pa.string())
    whole = pa.table({"node": column if is_chunked else column.combine_chunks()})
    columns, start = NodeColumns(), 0
    for nodes in batches:
        batch = Decoded({"gpu_samples": BatchRows(whole, start, len(nodes))}, 0)
        refusal = columns.refusal(batch, "n1")
        assert (refusal is None) == (set(nodes) <= {"n1"})
        if isinstance(refusal, RefusedBody):
            assert refusal.status == 403
            other = next(n for n in nodes if n != "n1")
            assert f"for node n1, and the batch has rows of node {other}" in refusal.reason
        start += len(nodes)


async def test_ids_that_a_node_invents_swallow_no_batch_of_another(
    start: Any, grant: Any, bearer: Any, wire: Any, post: Any, data_dir: Any, clock: Any
) -> None:
    own, other = grant(Scope.INGEST, node="n1"), grant(Scope.INGEST, node="n2")
    same = grant(Scope.INGEST, node="n1")
    fleet = grant(Scope.INGEST)
    fresh = Token.new(Scope.INGEST)
    hour = timedelta(hours=1)
    rotated = lambda book: (book.rotated(fleet.id, fresh, clock.now(), hour), None)
    edit(data_dir / NAME, rotated)
    async with start(require_tokens=True) as collector:

        async def send(token: Token, number: int, node: str, oldest: int = 0) -> int:
            """How many batches were stored by it."""
            row = wire.gpu_row(0, number % 100, node=node, gpu_uuid=f"GPU-{node}")
            body = wire.zstd(wire.stream("gpu_samples", [row]))
            before = collector.stats.batches
            status, text, _ = await post(
                collector.url, body, number, oldest=oldest, headers=bearer(token)
            )
            assert status == 204, text
            return int(collector.stats.batches - before)

        assert await send(other, 10**17, "n2", oldest=10**17) == 1
        assert await send(own, 1, "n1") == 1
        assert await send(same, 1, "n1") == 0, "another token of the node"
        assert await send(fleet, 1, "n3") == 1
        assert await send(fresh, 1, "n3") == 0, "rotated"
        assert await send(own, 2, "n1") == 1
    database = Database.open(data_dir, EngineLimits(memory="512MiB", threads=1))
    known = load_known(database, clock.now())
    database.close()
    senders = ("node:n1", "node:n2", f"token:{fleet.id}")
    assert [known.ledger.count(sender) for sender in senders] == [1, 1, 1]
    assert len(known.ledger) == 3
