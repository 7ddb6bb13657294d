"""A segment reads as what was written to it, wherever it was torn, damaged or given up."""

import os
import shutil
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.collector.made_up_store import LIMITS, asked

from gpuwarden_collector.storage import segment
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.hot import Damage, Segment, read_tail
from gpuwarden_collector.storage.segment import (
    SCHEMAS,
    BatchKey,
    Frame,
    SegmentError,
    SegmentWriter,
    read_header,
    segment_path,
)

TABLES = ("gpu_samples", "events")


def table(name: str, first: int, rows: int) -> Any:
    values = {
        "ts": list(range(first, first + rows)),
        "node": [f"n{n % 3}" for n in range(rows)],
        "gpu_uuid": ["GPU-ü"] * rows,
        "simulated": [n % 2 == 0 for n in range(rows)],
        "memory_used_bytes": [None if n % 4 else n for n in range(rows)],
        "kind": ["xid"] * rows,
        "severity": ["info"] * rows,
        "message": ["m" * (n % 70) for n in range(rows)],
    }
    arrays = [pa.array(values.get(f.name, [None] * rows), f.type) for f in SCHEMAS[name]]
    return pa.Table.from_arrays(arrays, schema=SCHEMAS[name])


def frame(number: int = 1, rows: int = 3) -> Frame:
    key = BatchKey("", "a", "b", number, 0)
    return Frame({"gpu_samples": table("gpu_samples", 10 * number, rows)}, [key])


keys = st.builds(
    BatchKey, st.text(max_size=3), st.text(max_size=3), st.text(max_size=3),
    st.integers(0, 2**63), st.integers(0, 2**63),
)  # fmt: skip
pieces = st.lists(st.integers(1, 6), max_size=3)
frames = st.builds(
    Frame,
    st.fixed_dictionaries(dict.fromkeys(TABLES, pieces)).map(
        lambda sizes: {
            name: pa.concat_tables([table(name, 7 * n, n) for n in sizes[name]])
            for name in TABLES
            if sizes[name]
        }
    ),
    st.lists(keys, max_size=3),
    st.none() | st.dictionaries(st.sampled_from(["minutes_until", "hours_until"]), st.text()),
)


def written(folder: Path, wanted: Sequence[Frame], number: int = 1) -> list[int]:
    """The frames as a segment; where the header and each frame end."""
    writer = SegmentWriter(folder, number, None)
    ends = [writer.end]
    for one in wanted:
        writer.append(one)
        ends.append(writer.end)
    writer.close()
    return ends


def read(folder: Path, number: int = 1, limit: int | None = None, **options: Any) -> list[Frame]:
    found = Segment(folder, number)
    frames = []
    for one in found.new_frames(limit, **options):
        batches: dict[str, list[Any]] = {}
        for message in one.messages:
            content = pa.py_buffer(one.body.slice(message.start, message.size))
            batch = pa.ipc.read_record_batch(content, found.header.schemas[message.table])
            batches.setdefault(message.table, []).append(batch)
        tables = {name: pa.Table.from_batches(parts) for name, parts in batches.items()}
        assert one.rows == sum(table.num_rows for table in tables.values())
        frames.append(Frame(tables, one.batches, one.progress))
    return frames


@given(st.lists(frames, max_size=4))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_frames_are_read_as_they_were_written(tmp_path: Path, wanted: list[Frame]) -> None:
    segment_path(tmp_path, 1).unlink(missing_ok=True)
    written(tmp_path, wanted)
    assert read(tmp_path) == [Frame(dict(f.tables), list(f.batches), f.progress) for f in wanted]


def test_a_torn_frame_is_no_data_wherever_it_was_torn(tmp_path: Path) -> None:
    wanted = [frame(1), frame(2), frame(3, rows=1)]
    _, _, before, end = written(tmp_path, wanted)
    path = segment_path(tmp_path, 1)
    content = path.read_bytes()
    assert len(content) == end
    # Each length of a head, and then one in seventeen: a frame has the same parts everywhere.
    for cut_at in (
        *range(before, before + 64),
        *range(before + 64, end - 16, 17),
        *range(end - 16, end),
    ):
        path.write_bytes(content[:cut_at])
        assert [len(f.batches) for f in read(tmp_path)] == [1, 1], cut_at
    # A kill or an older file may leave anything behind the last frame.
    path.write_bytes(content[:before] + bytes(300) + os.urandom(300))
    assert len(read(tmp_path, is_abandoned=True)) == 2


@pytest.mark.slow
def test_no_byte_of_a_frame_can_change_unseen(tmp_path: Path) -> None:
    """But those between its parts, which hold nothing."""
    wanted = [frame(1, rows=1), frame(2)]
    begin, end, _ = written(tmp_path, wanted)
    path = segment_path(tmp_path, 1)
    content = path.read_bytes()
    for at in range(begin, end):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        found = read(tmp_path, limit=len(content))
        assert found[-1] == wanted[1], at
        assert len(found) == 1 or found == wanted, at
        assert len(found) == 1 or content[at] == 0, at


@pytest.mark.parametrize("is_known", [True, False])
def test_what_follows_damage_is_found(tmp_path: Path, is_known: bool) -> None:
    """The next segment says where this one ends, or nobody does."""
    ends = written(tmp_path, [frame(n) for n in range(1, 6)])
    path = segment_path(tmp_path, 1)
    with path.open("r+b") as file:
        for at in (ends[1], ends[3]):  # where the second and the fourth begin
            file.seek(at)
            file.write(b"rot")
    found = Segment(tmp_path, 1)
    limit = ends[-1] if is_known else None
    sequences = [f.batches[0].sequence for f in found.new_frames(limit, is_abandoned=not is_known)]
    assert sequences == [1, 3, 5]
    assert found.damaged == [Damage(1, ends[1], ends[2]), Damage(1, ends[3], ends[4])]
    assert found.end == ends[-1]


def test_a_frame_of_another_file_is_none_of_this_one(tmp_path: Path) -> None:
    """As an agent could send the bytes of a frame in a text, or a disk return old ones."""
    begin, end = written(tmp_path, [frame(1)])
    stranger = segment_path(tmp_path, 1).read_bytes()[begin:end]
    written(tmp_path, [], number=2)
    with segment_path(tmp_path, 2).open("ab") as file:
        file.write(stranger)
    assert read(tmp_path, 2) == read(tmp_path, 2, is_abandoned=True) == []


def test_what_stands_behind_the_end_that_the_next_segment_tells_is_no_data(tmp_path: Path) -> None:
    _, end, _ = written(tmp_path, [frame(1), frame(2)])
    assert [key.sequence for key in read_tail(tmp_path, 0).batches] == [1, 2]
    SegmentWriter(tmp_path, 2, end).close()
    assert [key.sequence for key in read_tail(tmp_path, 0).batches] == [1]
    # Another than the one right behind says nothing of it.
    segment_path(tmp_path, 2).rename(segment_path(tmp_path, 3))
    assert [key.sequence for key in read_tail(tmp_path, 0).batches] == [1, 2]


def test_a_segment_has_its_name_when_its_header_is_whole(
    tmp_path: Path, files_of_at_most: Any
) -> None:
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        SegmentWriter(tmp_path, 1, None)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "000000000001.new").write_bytes(b"as a kill leaves it")
    SegmentWriter(tmp_path, 1, None).close()
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.seg"]
    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path, 1, None)
    assert read_header(segment_path(tmp_path, 1)).number == 1


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, how: str) -> Any:
    """The disk fails at a step of an append, whose bytes may all be there."""
    with monkeypatch.context() as patched:
        real = os.pwritev

        def torn(file: int, buffers: Any, at: int) -> int:
            if how == "nothing written":
                raise OSError(28, "No space left on device")
            if at > 20_000:
                raise OSError(28, "No space left on device")
            return real(file, [b"".join(buffers)[: 20_001 - at]], at)

        def unsynced(_: int) -> None:
            raise OSError(5, "Input/output error")

        if how == "not synced":
            patched.setattr(segment.os, "fdatasync", unsynced)
        else:
            patched.setattr(segment.os, "pwritev", torn)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("how", ["nothing written", "torn", "not synced"])
@pytest.mark.parametrize("when", ["kill", "close", "retry"])
def test_after_a_failed_append_nothing_is_lost_or_doubled(
    data_dir: Path, database: Database, monkeypatch: pytest.MonkeyPatch, how: str, when: str
) -> None:
    """A refused batch is sent again, before or after a restart, unless the ledger has it."""

    def changes(number: int) -> Changes:
        one = frame(number, rows=40)
        return Changes(appended=one.tables, batches=one.batches)

    commit(database, changes(1))
    first = database.segment_number
    with failing(monkeypatch, how), pytest.raises(StoreUnavailableError):
        commit(database, changes(2))
    again = database
    if when == "retry":
        commit(database, changes(2))
        assert database.segment_number == first + 1
    if when == "close":
        database.close()
    if when != "retry":
        folder = Path(shutil.copytree(data_dir, data_dir / "again"))
        again = Database.open(folder, LIMITS)
        if 2 not in [key.sequence for key in again.tail.batches]:
            commit(again, changes(2))
    commit(again, changes(3))
    sql = "SELECT count(*), count(DISTINCT ts) FROM gpu_samples"
    wanted = [(120, 60)]  # the instants of two batches next to each other overlap
    assert asked(again, sql) == wanted
    folder = Path(shutil.copytree(again.data_dir, data_dir / "last"))
    again.close()
    last = Database.open(folder, LIMITS)
    assert [key.sequence for key in last.tail.batches] == [1, 2, 3]
    assert asked(last, sql) == wanted
    last.close()


@pytest.mark.parametrize(
    "said", [b"", b"{", b"[]", b"{}", b'{"batches": [], "tables": 1}', b'{"batches": [1], "tables": []}',
             b'{"batches": [], "tables": [["gpu_samples"]]}', b"[" * 50_000, b"\xff"],
)  # fmt: skip
def test_what_no_collector_writes_is_no_data_though_its_sum_is_right(
    tmp_path: Path, said: bytes
) -> None:
    """Who sends second copies computes the sum."""
    frame = segment._FRAME.pack(segment._FRAME_MAGIC, len(said), google_crc32c.extend(7, said), 0)
    content = pa.py_buffer((frame + said).ljust(4096, b"\0"))
    assert [*segment.frames_of(content, 0, 7)] == []
    assert segment.next_frame(content, 0, 0, 7) is None
    header = segment._HEADER.pack(segment._FILE_MAGIC, len(said), google_crc32c.value(said))
    (tmp_path / "header").write_bytes(header + said)
    with pytest.raises(SegmentError, match="a header that no collector writes"):
        segment.read_header(tmp_path / "header")
