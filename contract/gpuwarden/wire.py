"""Defines the wire format between agent and collector: one batch per request. `docs/wire.md` has all of it.

    POST /v1/ingest
    Content-Type: application/vnd.apache.arrow.stream
    Content-Encoding: zstd                     (or none)
    Gpuwarden-Wire-Version: 1
    Gpuwarden-Agent-Id: 5f0c...                identity of the agent's spool, made with it
    Gpuwarden-Boot-Id: 8d3e....5b21...         the kernel's boot id when the batch was sealed, a dot, and a
                                               nonce of the opening of the spool that sealed it
    Gpuwarden-Sequence: 4711                   1, 2, 3 ... for this agent, never reused
    Gpuwarden-Oldest-Sequence: 4709            optional: nothing older will be sent again
    Gpuwarden-Sent-Before: 1                   only if it may have been sent before, to anyone, and
                                               no answer said that it is not stored
    Gpuwarden-Now: 1767225600000               optional: the agent's clock, milliseconds since 1970
    Gpuwarden-Import: 1                        only if its rows are history that was read from files

    body: one or more Arrow IPC streams, one after another, each with `gpuwarden.table` in its
    schema metadata

Answers: 204 the batch is durable (or was already), and while the collector has much to do it carries
Gpuwarden-Batch-Seconds: seconds of samples that it would like in a batch; 4xx it is wrong, `{"error": ...}` says what, and
it must not be sent again; 429 and 503 carry Retry-After and mean later; so does anything else, and
those 4xx that are about the address or the caller and not the batch (401, 403, 404, 405, 408, and
426 for a wire version that the collector does not speak).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

WIRE_VERSION = 1
INGEST_PATH = "/v1/ingest"
CONTENT_TYPE = "application/vnd.apache.arrow.stream"
TABLE_KEY = "gpuwarden.table"

BODY_BYTES_MAX = 16 * 1024 * 1024
"""Largest body as sent; above it 413."""
DECODED_BYTES_MAX = 64 * 1024 * 1024
"""Largest body after decompression; above it 413."""
ROWS_MAX = 200_000
"""Most rows of a batch, all tables together; above it 413."""

PAST_S_MAX = 14 * 86_400
"""Most seconds that a sample may be old."""
AHEAD_S_MAX = 300
"""How far ahead of the collector's clock a sample may be; agents further ahead start again."""

VERSION_HEADER = "Gpuwarden-Wire-Version"
AGENT_HEADER = "Gpuwarden-Agent-Id"
BOOT_HEADER = "Gpuwarden-Boot-Id"
SEQUENCE_HEADER = "Gpuwarden-Sequence"
OLDEST_HEADER = "Gpuwarden-Oldest-Sequence"
SENT_BEFORE_HEADER = "Gpuwarden-Sent-Before"
IMPORT_HEADER = "Gpuwarden-Import"
NOW_HEADER = "Gpuwarden-Now"
BATCH_SECONDS_HEADER = "Gpuwarden-Batch-Seconds"

BATCH_SECONDS_MAX = 30
"""Largest value of that header: data shown as current must not be older."""

_IDENTITY = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_NOW_MS_MAX = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class BatchId:
    """Identity of a batch: the collector stores each one once."""

    agent_id: str
    boot_id: str
    """From `sealed_under`."""
    sequence: int
    oldest_sequence: int = 0
    """The agent will send no batch of this boot below it; 0: unknown."""
    is_sent_before: bool = False
    """Whether it may have been sent before, perhaps to another collector that stored it."""
    is_import: bool = False
    """Whether its rows are history: they may have any age since 1970, do not mean that the node reports now, and
    do not replace known data of nodes and GPUs."""

    @property
    def kernel_boot_id(self) -> str:
        """The boot id of the machine, without the nonce of the spool."""
        return self.boot_id.partition(".")[0]


class WireError(ValueError):
    """The request does not follow the wire format; the message names what is wrong."""


class WireVersionError(WireError):
    """The request has another wire version; the batch may be right, and the agent must keep it."""


def sealed_under(kernel_boot_id: str, nonce: str) -> str:
    """The boot id of batches that are sealed after one opening of a spool.

    A spool that is restored within a boot, as from a snapshot of the machine, repeats sequence numbers: the
    nonce of its next opening makes their identities differ.
    """
    return f"{kernel_boot_id}.{nonce}"


def headers_of(batch: BatchId) -> dict[str, str]:
    """Request headers that carry a batch's identity."""
    headers = {
        VERSION_HEADER: str(WIRE_VERSION),
        AGENT_HEADER: batch.agent_id,
        BOOT_HEADER: batch.boot_id,
        SEQUENCE_HEADER: str(batch.sequence),
    }
    if batch.oldest_sequence:
        headers[OLDEST_HEADER] = str(batch.oldest_sequence)
    if batch.is_sent_before:
        headers[SENT_BEFORE_HEADER] = "1"
    if batch.is_import:
        headers[IMPORT_HEADER] = "1"
    return headers


def batch_id_of(headers: Mapping[str, str]) -> BatchId:
    """The identity that request headers carry.

    `headers` must look names up without regard to case. Raises WireError.
    """
    version = headers.get(VERSION_HEADER)
    if version != str(WIRE_VERSION):
        got = "is missing" if version is None else f"is {version!r}"
        raise WireVersionError(
            f"{VERSION_HEADER} {got}; this collector speaks {WIRE_VERSION}: upgrade the older of agent and"
            " collector"
        )
    sequence = _number(headers, SEQUENCE_HEADER)
    oldest = _number(headers, OLDEST_HEADER) if OLDEST_HEADER in headers else 0
    if sequence < 1:
        raise WireError(f"{SEQUENCE_HEADER} must be at least 1")
    if oldest > sequence:
        raise WireError(f"{OLDEST_HEADER} {oldest} is above {SEQUENCE_HEADER} {sequence}")
    return BatchId(
        _identity(headers, AGENT_HEADER),
        _identity(headers, BOOT_HEADER),
        sequence,
        oldest,
        headers.get(SENT_BEFORE_HEADER, "0") != "0",
        headers.get(IMPORT_HEADER, "0") != "0",
    )


def now_ms_of(headers: Mapping[str, str]) -> int | None:
    """The sender's clock in milliseconds since 1970; None: not sent. Raises WireError."""
    value = headers.get(NOW_HEADER)
    if value is None:
        return None
    if not _NUMBER.match(value) or int(value) > _NOW_MS_MAX:
        raise WireError(f"{NOW_HEADER} must be milliseconds since 1970, before the year 10000")
    return int(value)


def batch_seconds_of(value: str | None) -> int:
    """Seconds of samples per batch that the collector asks for; 0: none, or an invalid value."""
    if value is None or not _NUMBER.match(value):
        return 0
    return min(int(value), BATCH_SECONDS_MAX)


def error_sentence(body: str | bytes) -> str | None:
    """The sentence of an answer `{"error": ...}`, with its hint and position; None: not a collector's answer."""
    try:
        said = json.loads(body)
        sentence = str(said["error"])
        if hint := said.get("hint"):
            sentence += f"; {hint}"
        if place := said.get("position"):
            sentence += f" (line {place['line']}, column {place['column']})"
        return sentence
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _identity(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if value is None:
        raise WireError(f"header {name} is missing")
    if not _IDENTITY.match(value):
        raise WireError(f"header {name} must be 1 to 64 letters, digits, '.', '_' or '-'")
    return value


def _number(headers: Mapping[str, str], name: str) -> int:
    value = headers.get(name)
    if value is None:
        raise WireError(f"header {name} is missing")
    if not _NUMBER.match(value):
        raise WireError(f"header {name} must be a whole number of at most 18 digits")
    return int(value)
