"""Makes recordings small and anonymous for test data: columns that no verdict needs are removed.

python -m bench.diagnosis.pack --to FOLDER [--folder build/diagnosis] [--seeds 1,2,3]
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from bench.diagnosis.recordings import SUFFIX, Run

from gpuwarden_agent.probe import Reading, Row, Value
from gpuwarden_simulator.recordings.format import (
    Described,
    Entry,
    RecordingError,
    Samples,
    encode_block,
    read_blocks,
)

HOST = ("cpu_util_percent", "cpu_iowait_percent", "psi_cpu_some_percent", "psi_io_some_percent", "disk_busy_percent", "network_rx_bytes_total", "nfs_reads_total", "nfs_read_seconds_total", "nfs_read_bytes_total")  # fmt: skip
KEPT: Mapping[str, tuple[str, ...]] = {"host_samples": HOST, "nodes": ("cpus", "cpu_cores")}
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "process_samples": ("cgroup", "container_id", "threads", "rss_bytes", "voluntary_switches_total", "involuntary_switches_total", "children_cpu_percent", "cgroup_memory_limit_bytes", "cgroup_memory_used_bytes", "ancestors", "loader_pids", "parent_pid", "signals_pending", "signals_blocked", "signals_ignored", "signals_caught"),
}  # fmt: skip
OWNER = "bench"


def packed_row(table: str, row: Row) -> Row:
    """A row with the columns that are kept."""
    kept, left_out = KEPT.get(table), LEFT_OUT.get(table, ())
    names = [name for name in row if name not in left_out and (kept is None or name in kept)]
    made = {name: _rounded(row[name]) for name in names}
    if "username" in made:
        made["username"] = OWNER
    if isinstance(command := made.get("command"), str):
        made["command"] = " ".join(word.rpartition("/")[2] for word in command.split(" "))
    return made


def _rounded(value: Value) -> Value:
    return round(value, 2) if isinstance(value, float) else value


def packed(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries with small rows."""
    for entry in entries:
        if isinstance(entry, (Samples, Described)):
            rows: Reading = {
                table: [packed_row(table, row) for row in several]
                for table, several in entry.rows.items()
            }
            yield replace(entry, rows=rows)
        else:
            yield entry


def pack(source: Path, target: Path) -> int:
    """Write one recording again, as one block; its size in bytes. Raises RecordingError."""
    with source.open("rb") as file:
        blocks = list(read_blocks(file, str(source)))
    entries = [entry for block in blocks for entry in packed(block.entries)]
    content = encode_block(entries, blocks[0].header)
    target.write_bytes(content)
    return len(content)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--folder", type=Path, default=Path("build/diagnosis"))
    options.add_argument("--to", type=Path, required=True)
    options.add_argument("--seeds", type=lambda t: {int(s) for s in t.split(",")}, default={1})
    args = options.parse_args()
    sources = [
        path
        for path in sorted(args.folder.glob(f"*{SUFFIX}"))
        if Run(path.name.removesuffix(SUFFIX)).seed in args.seeds
    ]
    if not sources:
        print(f"{args.folder} has no recordings of these seeds", file=sys.stderr)
        return 1
    try:
        args.to.mkdir(parents=True, exist_ok=True)
        size = sum(pack(source, args.to / source.name) for source in sources)
        search = args.folder / "search.json"
        if search.exists():
            (args.to / search.name).write_text(search.read_text())
    except (RecordingError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(sources)} recordings, {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
