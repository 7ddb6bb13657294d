"""Compares answers: `python -m bench.promql`. It needs Debian's prometheus.

Prints by feature how many queries gave the same series, labels and values as Prometheus.
"""

import argparse
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.promql.compare import Asked, difference, is_installed, ours, prometheus_of
from bench.promql.queries import queries
from bench.promql.samples import BEGAN_S, filled, openmetrics
from bench.this_host import free_port


def _told(equal: Sequence[str], partly: Sequence[str]) -> str:
    """The table of features as two paragraphs: queries that are equal, of queries that were asked."""
    lines = [f"Equal: {', '.join(equal)}."]
    if partly:
        lines.append(f"Equal in part: {', '.join(partly)}.")
    return "\n\n".join("\n".join(textwrap.wrap(line, 110)) for line in lines)


_BEGIN, _END = "<!-- begin features -->", "<!-- end features -->"


def asked_of(query: str) -> Iterator[Asked]:
    """A query at instants and over spans, which no window of a sample or subquery begins at."""
    began_s = BEGAN_S + 0.25
    yield Asked(query, began_s + 620, began_s + 620, 0)
    yield Asked(query, began_s + 1_250.5, began_s + 1_250.5, 0)
    yield Asked(query, began_s + 300, began_s + 1_500, 60)
    yield Asked(query, began_s + 560, began_s + 960, 7)
    yield Asked(query, began_s + 1_100, began_s + 1_900, 100)


def main() -> int:
    """Compare all queries; the number of those that differ, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="queries that contain this")
    parser.add_argument("--write", type=Path, help="the page whose table of features is written")
    chosen = parser.parse_args()
    if not is_installed():
        print("needs prometheus and promtool on the PATH: apt install prometheus")
        return 2
    connection = filled()
    different = total = 0
    equal: list[str] = []
    partly: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        prometheus_of(openmetrics(connection), Path(folder), free_port()) as theirs,
    ):
        mine = ours(connection)
        for feature, asked in queries().items():
            wrong = {}
            for query in asked:
                if chosen.only not in query:
                    continue
                total += 1
                for one in asked_of(query):
                    if found := difference(theirs(one), mine(one)):
                        wrong[query] = (
                            f"{one.start_s - BEGAN_S:g}+{one.end_s - one.start_s:g}/{one.step_s:g}: {found}"
                        )
                        break
            different += len(wrong)
            (partly if wrong else equal).append(f"{feature} {len(asked) - len(wrong)}/{len(asked)}")
            print(f"{feature:20} {len(asked) - len(wrong):4} of {len(asked):4}", flush=True)
            for query, found in wrong.items():
                print(f"    {query}\n        {found}")
    print(f"{total - different} of {total} queries give the same")
    if chosen.write is not None and not chosen.only:
        page = chosen.write.read_text()
        before, _, rest = page.partition(f"{_BEGIN}\n")
        after = rest.partition(_END)[2]
        chosen.write.write_text(
            "\n".join([f"{before}{_BEGIN}", _told(equal, partly), f"{_END}{after}"])
        )
    return min(different, 1)


if __name__ == "__main__":
    raise SystemExit(main())
