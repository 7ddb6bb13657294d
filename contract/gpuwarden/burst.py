"""Defines the request for a burst: a GPU sampled 1 to 50 times a second for at most a minute.

A request goes to the collector, which hands it to the node's agent with the answer to a batch (header
`BURSTS_HEADER`); agents listen on no port. The samples come back as rows of `burst_samples`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

BURSTS_HEADER = "Gpuwarden-Bursts"
"""Of the answer to a batch: requests as JSON."""
NODE_HEADER = "Gpuwarden-Node"
"""Of a batch: the node whose agent sends it, in UTF-8 with % escapes."""
HZ_MIN, HZ_MAX = 1.0, 50.0
SECONDS_MIN, SECONDS_MAX = 1.0, 60.0
EXPIRES_S = 60.0
"""An agent that sends no batch in this time does not get the request."""
HEADER_BYTES_MAX = 4096
_ID = re.compile(r"[0-9a-f]{12}")
NAME_CHARACTERS_MAX = 128


class BurstError(ValueError):
    """A request that cannot be taken; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class BurstRequest:
    """A burst that somebody asked for."""

    id: str
    gpu_uuid: str
    hz: float
    seconds: float


def burst_of(document: Any, name: str) -> tuple[str, BurstRequest]:
    """The node and the request of a document. `name`: its identity. Raises BurstError."""
    if not isinstance(document, dict) or document.keys() - {"node", "gpu_uuid", "hz", "seconds"}:
        raise BurstError(
            'the body must be like {"node": "n1", "gpu_uuid": "GPU-…", "hz": 20, "seconds": 30}'
        )
    node, gpu_uuid = document.get("node"), document.get("gpu_uuid")
    for what, value in (("node", node), ("gpu_uuid", gpu_uuid)):
        if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARACTERS_MAX:
            raise BurstError(f"{what} must be a name of 1 to {NAME_CHARACTERS_MAX} characters")
    hz = _number(document, "hz", 20.0, HZ_MIN, HZ_MAX)
    seconds = _number(document, "seconds", 30.0, SECONDS_MIN, SECONDS_MAX)
    assert isinstance(node, str) and isinstance(gpu_uuid, str)
    return node, BurstRequest(name, gpu_uuid, hz, seconds)


def _number(
    document: Mapping[str, Any], name: str, default: float, least: float, most: float
) -> float:
    value = document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise BurstError(f"{name} must be {least:g} to {most:g}, not {value!r}"[:200])
    return float(value)


def bursts_header(requests: Iterable[BurstRequest]) -> str:
    """The header's value."""
    return json.dumps([asdict(one) for one in requests], separators=(",", ":"))


def bursts_of(text: str | None) -> list[BurstRequest]:
    """The requests of a header; what is not one is left out, as another version may have sent it."""
    if text is None or len(text) > HEADER_BYTES_MAX:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [one for each in found if (one := _request(each))] if isinstance(found, list) else []


def _request(each: Any) -> BurstRequest | None:
    if not isinstance(each, dict) or not _ID.fullmatch(str(each.get("id"))):
        return None
    known = {name: each.get(name) for name in ("gpu_uuid", "hz", "seconds")}
    try:
        _, request = burst_of({"node": "n", **known}, str(each["id"]))
    except BurstError:
        return None
    return request
