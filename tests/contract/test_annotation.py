"""What may be written onto charts, and when."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.annotation import AnnotationError, annotation_of
from gpuwarden.schema import ANNOTATIONS

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def made(**document: Any) -> Any:
    return annotation_of(document, name="a1", author="ada", now=NOW)


def test_a_text_alone_is_about_all_and_now() -> None:
    one = made(text=" deployed 2.3 ")
    assert (one.text, one.began_at, one.ended_at, one.node, one.tags) == (
        "deployed 2.3", NOW, None, None, (),
    )  # fmt: skip
    assert set(one.row) == set(ANNOTATIONS.names)


def test_times_without_a_zone_are_utc_and_tags_are_a_json_list() -> None:
    one = made(text="x", at="2026-05-01T10:00", until="2026-05-01T13:00+02:00", node="n1", gpu=0, tags=["a", "ü"])  # fmt: skip
    assert one.ended_at - one.began_at == timedelta(hours=1)
    assert one.row["tags"] == '["a", "ü"]'


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "text: say what happened"),
        ({"text": ""}, "text: it must be a text of 1 to 200"),
        ({"text": "a\u202eb"}, "text: it must be a text of 1 to 200"),
        ({"text": "\ud800"}, "text: it must be a text of 1 to 200"),
        ({"text": "x", "at": "soon"}, "at: it must be an instant: 2026-03-01T12:00Z"),
        ({"text": "x", "at": 5}, "at: it must be an instant"),
        ({"text": "x", "at": "1970-01-01"}, "at: it must be from the year 2000 on"),
        ({"text": "x", "at": "2030-01-01"}, "at most a year ahead"),
        ({"text": "x", "until": "2026-05-01T12:00Z"}, "until: it must be after at"),
        ({"text": "x", "gpu": 1}, "gpu: give node too"),
        ({"text": "x", "node": "n", "gpu": "1"}, "gpu: it must be the index"),
        ({"text": "x", "tags": "a"}, "tags: it must be a list"),
        ({"text": "x", "tags": ["a"] * 11}, "tags: it must be a list of at most 10"),
        ({"text": "x", "tags": [None]}, "tags: each must have"),
        ({"text": "x", "colour": 1}, "colour: there is no such key"),
    ],
)
def test_what_is_wrong_is_one_line(document: Any, said: str) -> None:
    with pytest.raises(AnnotationError, match=said):
        made(**document)


@settings(max_examples=40)
@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["text", "at", "node", "gpu", "tags", "x"]), inner))
)  # fmt: skip
def test_any_json_is_an_annotation_or_is_refused_in_a_line(document: Any) -> None:
    try:
        one = annotation_of(document, name="a1", author=None, now=NOW)
    except AnnotationError as error:
        assert str(error).isprintable()
    else:
        assert one.text and one.began_at == one.began_at.astimezone(UTC)
