"""Queries over one set of samples give what a real Prometheus gives."""

from pathlib import Path

import pytest
from bench.promql.__main__ import asked_of
from bench.promql.compare import difference, is_installed, ours, prometheus_of
from bench.promql.queries import queries
from bench.promql.samples import filled, openmetrics
from bench.this_host import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="prometheus and promtool are not on the PATH"),
]


def test_prometheus_gives_the_same_series_labels_and_values(tmp_path: Path) -> None:
    connection = filled()
    wrong = {}
    number = 0
    with prometheus_of(openmetrics(connection), tmp_path, free_port()) as theirs:
        mine = ours(connection)
        for asked in queries().values():
            for query in asked:
                # `python -m bench.promql` asks each in all ways.
                ways = [*asked_of(query)]
                one = ways[number % len(ways)]
                number += 1
                if found := difference(theirs(one), mine(one)):
                    wrong[query] = found
    assert number >= 500
    assert not wrong
