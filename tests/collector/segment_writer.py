"""A process that stores rows numbered from 1 on, seals and deletes them: `segment_writer.py FOLDER`.

Until stdin is closed; then it says how many there are.
"""

import sys
import threading
from pathlib import Path

import pyarrow as pa

from gpuwarden_collector.storage import joined_rows as joined
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.lake import seal
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_collector.storage.views import hot_table

ROWS = 50
FRAMES = 7
"""Of a segment."""
BLOCK_BYTES = 40_000
"""Two or three frames; each reader must have the same."""
NAME = "gpu_samples"


def rows(first: int) -> pa.Table:
    """The rows from a number on."""
    numbers = list(range(first, first + ROWS))
    values = {
        "ts": [1_000_000 * number for number in numbers],
        "node": ["n"] * ROWS,
        "gpu_uuid": ["g"] * ROWS,
        "simulated": [True] * ROWS,
        "memory_used_bytes": numbers,
    }
    arrays = [pa.array(values.get(f.name, [None] * ROWS), f.type) for f in SCHEMAS[NAME]]
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[NAME])


def keep_sealing(database: Database, is_over: threading.Event) -> None:
    """Join and move what is stored, as a collector's storage process does beside its writer."""
    while not is_over.is_set() or database.frozen:
        database.join_hot()
        for segment in database.frozen:
            with database.maintaining([NAME], until=segment) as cursor:
                source = {NAME: f"SELECT * FROM {hot_table(NAME)}"}
                seal(cursor, database.lake_root, database.collector, segment, source)
            database.drop(segment)
        is_over.wait(0.01)


def main(folder: Path) -> None:
    """Store, seal, until stdin is closed."""
    joined.BLOCK_BYTES = BLOCK_BYTES
    database = Database.open(folder, EngineLimits(memory="512MiB", threads=1))
    is_over, is_told = threading.Event(), threading.Event()
    sealer = threading.Thread(target=keep_sealing, args=(database, is_over))
    reader = threading.Thread(target=lambda: (sys.stdin.read(), is_told.set()), daemon=True)
    sealer.start()
    reader.start()
    print(database.collector, flush=True)
    frames = 0
    while not is_told.is_set():
        commit(database, Changes(appended={NAME: rows(1 + ROWS * frames)}))
        frames += 1
        if frames % FRAMES == 0:
            database.freeze()
        is_told.wait(0.003)
    is_over.set()
    sealer.join()
    print(frames * ROWS, flush=True)
    database.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
