"""Checks that a batch has rows of the token's own node alone.

Batches that were decoded together lie in the same tables, one after another: a table's names are taken
as runs once, and a batch is then nearly always one run to be looked up.
"""

from bisect import bisect_right
from typing import Any

import pyarrow.compute as pc

from gpuwarden_collector.ingest.decode import Decoded, RefusedBody

_Runs = tuple[list[int], list[str | None]]
"""Where each run ends, and its name."""


class NodeColumns:
    """The columns `node` of tables as runs; for one group of batches."""

    def __init__(self) -> None:
        self._known: dict[int, _Runs] = {}

    def refusal(self, batch: Decoded, node: str) -> RefusedBody | None:
        """Why a batch is not this node's; None: it is."""
        for part in batch.parts.values():
            ends, names = self._runs(part.whole)
            end = part.start + part.rows
            run = bisect_right(ends, part.start)
            while part.start < end and run < len(ends):
                if names[run] != node:
                    return RefusedBody(
                        403,
                        f"the token is for node {node}, and the batch has rows of node {names[run]}:"
                        " enroll that node, or give the agent its own name back",
                    )
                if ends[run] >= end:
                    break
                run += 1
        return None

    def _runs(self, table: Any) -> _Runs:
        runs = self._known.get(id(table))
        if runs is None:
            found = pc.run_end_encode(table.column("node").combine_chunks())
            runs = self._known[id(table)] = found.run_ends.to_pylist(), found.values.to_pylist()
        return runs
