"""Defines annotations: what people and programs write onto the time axis of charts, such as "deployed 2.3"."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

TEXT_CHARACTERS_MAX = 200
TAGS_MAX = 10
TAG_CHARACTERS_MAX = 40
PLACE_CHARACTERS_MAX = 253
ANNOTATIONS_MAX = 10_000
"""Annotations that a collector keeps."""
_KEYS = ("text", "at", "until", "node", "gpu", "job", "tags")
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_AHEAD_MAX = timedelta(days=366)
_GPU_MAX = 1024


class AnnotationError(ValueError):
    """The request makes no annotation; the message says what to write."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """A text at a moment or over a time, about a node, a GPU, a job or all."""

    id: str
    text: str
    began_at: datetime
    ended_at: datetime | None
    """None: a moment."""
    node: str | None
    gpu: int | None
    """Index of the GPU of `node`."""
    job: str | None
    tags: Sequence[str]
    author: str | None
    """The token's owner; None: no tokens are required."""
    made_at: datetime

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of table `annotations`."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "tags": json.dumps(list(self.tags), ensure_ascii=False)
        }


def annotation_of(document: Any, *, name: str, author: str | None, now: datetime) -> Annotation:
    """The annotation of a request's JSON; `name`: its identity. Raises AnnotationError: one line that says what to write."""
    if not isinstance(document, dict):
        raise AnnotationError('the body must be a JSON object: {"text": "deployed 2.3"}')
    if unknown := [key for key in document if key not in _KEYS]:
        raise AnnotationError(
            f"{ascii(unknown[0][:40])[1:-1]}: there is no such key; there are {', '.join(_KEYS)}"
        )
    text = _text(document, "text", TEXT_CHARACTERS_MAX)
    if text is None:
        raise AnnotationError(f"text: say what happened, in 1 to {TEXT_CHARACTERS_MAX} characters")
    began_at = _instant(document, "at", now) or now
    ended_at = _instant(document, "until", now)
    if ended_at is not None and ended_at <= began_at:
        raise AnnotationError("until: it must be after at")
    node = _text(document, "node", PLACE_CHARACTERS_MAX)
    job = _text(document, "job", PLACE_CHARACTERS_MAX)
    gpu = document.get("gpu")
    if gpu is not None and (type(gpu) is not int or not 0 <= gpu <= _GPU_MAX):
        raise AnnotationError("gpu: it must be the index of a GPU, such as 0")
    if gpu is not None and node is None:
        raise AnnotationError("gpu: give node too, as each node has a GPU 0")
    tags = document.get("tags") or []
    if not isinstance(tags, list) or len(tags) > TAGS_MAX:
        raise AnnotationError(f"tags: it must be a list of at most {TAGS_MAX} texts")
    words = tuple(_text({"tags": tag}, "tags", TAG_CHARACTERS_MAX) or "" for tag in tags)
    if not all(words):
        raise AnnotationError(f"tags: each must have 1 to {TAG_CHARACTERS_MAX} characters")
    return Annotation(name, text, began_at, ended_at, node, gpu, job, words, author, now)


def _text(document: Mapping[str, Any], key: str, most: int) -> str | None:
    value = document.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value.strip()) <= most:
        raise AnnotationError(f"{key}: it must be a text of 1 to {most} printable characters")
    return value.strip()


def _instant(document: Mapping[str, Any], key: str, now: datetime) -> datetime | None:
    value = document.get(key)
    if value is None:
        return None
    try:
        given = datetime.fromisoformat(value)
        given = given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        raise AnnotationError(f"{key}: it must be an instant: 2026-03-01T12:00Z") from None
    if not _FIRST <= given <= now + _AHEAD_MAX:
        raise AnnotationError(f"{key}: it must be from the year 2000 on, and at most a year ahead")
    return given
