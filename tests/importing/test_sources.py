"""Files as they are kept: packed, in folders, in other encodings, damaged."""

import gzip
import random
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_importing.model import UnreadableError
from gpuwarden_importing.sources import found, opened

TEXT = "eins\nzwei é\n"


@pytest.mark.parametrize(
    "content",
    [TEXT.encode(), gzip.compress(TEXT.encode(), mtime=0), zstandard.compress(TEXT.encode()),
     TEXT.encode("utf-16"), TEXT.encode("utf-8-sig"), TEXT.replace("\n", "\r\n").encode()],
)  # fmt: skip
def test_a_file_is_read_however_it_is_kept(tmp_path, content) -> None:
    path = tmp_path / "name.that.says.nothing"
    path.write_bytes(content)
    assert list(opened(path).lines()) == TEXT.splitlines(keepends=True)


def test_bytes_that_are_no_text_are_marked(tmp_path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a\xffb\n")
    assert list(opened(path).lines()) == ["a�b\n"]


def test_two_archives_one_after_another_are_one_file(tmp_path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert list(opened(path).lines()) == ["a\n", "b\n"]
    path.write_bytes(zstandard.compress(b"a\n") + zstandard.compress(b"b\n"))
    assert list(opened(path).lines()) == ["a\n", "b\n"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_damaged_archive_is_read_as_far_as_it_goes_and_said(tmp_path, pack) -> None:
    path = tmp_path / "x"
    whole = random.Random(1).randbytes(400_000).hex()
    path.write_bytes(pack(whole.encode())[:-1000])
    source = opened(path)
    read = "".join(source.lines())
    assert whole.startswith(read)
    assert "damaged" in source.trouble
    path.write_bytes(pack(b"x" * 100)[:6] + b"\xff" * 40)
    assert list(opened(path).lines()) == []


def test_a_folder_is_its_files_in_order_without_hidden_ones(tmp_path) -> None:
    for name in ("b", "a", "deep/c", ".hidden", ".git/d"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
    assert [str(p.relative_to(tmp_path)) for p in found([tmp_path])] == ["a", "b", "deep/c"]
    with pytest.raises(UnreadableError, match="no such file"):
        found([tmp_path / "nothing"])
    assert found([Path("-")]) == [Path("-")]


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=20_000), st.lists(st.integers(0, 20_000), max_size=2), st.data())
def test_zstd_that_is_cut_anywhere_within_a_frame_is_said(
    tmp_path_factory, content, cuts, data
) -> None:
    """Whole frames are read as they are, also where one ends and nothing follows."""
    edges = sorted({0, len(content), *(min(cut, len(content)) for cut in cuts)})
    frames = [zstandard.compress(content[a:b]) for a, b in pairwise(edges)] or [
        zstandard.compress(b"")
    ]
    whole = b"".join(frames)
    ends = set(accumulate(map(len, frames)))
    end = data.draw(st.integers(4, len(whole)))
    path = tmp_path_factory.getbasetemp() / "cut.zst"
    path.write_bytes(whole[:end])
    source = opened(path)
    read = b""
    try:
        while piece := source.stream.read(1 << 16):
            read += piece
        assert end in ends
    except EOFError as error:
        assert "before the end-of-stream" in str(error)
        assert end not in ends
    assert content.startswith(read)
    if end == len(whole):
        assert read == content
