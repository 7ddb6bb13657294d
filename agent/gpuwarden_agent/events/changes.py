"""Compares each sample with the one before it, and makes an event of a change.

`observe` is pure and knows neither clock nor source, so NVIDIA's driver, AMD's, a simulator and a
recording give the same events. The first reading makes no events of counters, nor of links and ports,
which may have no cable; any other bad state in it is an event.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuwarden.metrics import reason_names
from gpuwarden_agent.events.kinds import event, span
from gpuwarden_agent.probe import Row, Value

SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons that nobody set: hardware slowdown, software and hardware thermal, power brake."""

SLOWDOWN_BEGINS_MS = 3_000
SLOWDOWN_ENDS_MS = 10_000
"""A slowdown begins and ends after these times, so that a reason that flickers is one slowdown."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Clock reasons of a slowdown that holds, or held until just now."""

    since_ms: int
    seen_ms: int
    bits: int
    is_reported: bool = False


@dataclass(frozen=True, slots=True)
class ChangeState:
    """State to compare the next reading with, by GPU, link and port."""

    rows: Mapping[tuple[Value, ...], Row]
    slowdowns: Mapping[Value, Slowdown]


NOTHING = ChangeState({}, {})

_Change = tuple[str, str, dict[str, Any]]
"""Kind, sentence, and other columns of an event."""


def observe(
    seen: ChangeState, table: str, rows: Sequence[Row], reported: Collection[str] = ()
) -> tuple[ChangeState, list[Row]]:
    """The events in a reading's rows of one table (with ts and node), and the next state. `reported`: kinds that
    the probe reports itself, with more detail.
    """
    after, events = _observed(seen, table, rows)
    return after, [each for each in events if each["kind"] not in reported]


def _observed(seen: ChangeState, table: str, rows: Sequence[Row]) -> tuple[ChangeState, list[Row]]:
    match table:
        case "gpu_samples":
            return _gpu_samples(seen, rows)
        case "gpu_health_samples":
            return _each(seen, rows, ("gpu_uuid",), _health)
        case "link_samples":
            return _links(seen, rows)
        case "infiniband_samples":
            return _each(seen, rows, ("device", "port"), _port)
        case _:
            return seen, []


def _each(
    seen: ChangeState,
    rows: Sequence[Row],
    key: tuple[str, ...],
    compare: Callable[[Row | None, Row], list[_Change]],
) -> tuple[ChangeState, list[Row]]:
    known = dict(seen.rows)
    events = []
    for row in rows:
        place = tuple(row.get(name) for name in key)
        for kind, message, columns in compare(known.get(place), row):
            events.append(event(kind, message, **_of(row), **columns))
        # An absent value keeps its last one for the next comparison.
        known[place] = {**known.get(place, {}), **row}
    return replace(seen, rows=known), events


def _of(row: Row) -> dict[str, Any]:
    return {"gpu": row.get("gpu"), "gpu_uuid": row.get("gpu_uuid")}


# Health: counters that grew, flags that were set, states that changed.

_COUNTERS: tuple[tuple[str, str, str, str], ...] = (
    ("ecc_uncorrected_volatile_total", "ecc_uncorrected", "uncorrected memory errors",
     "what used that memory is wrong: restart the job; if more come, drain the GPU and reset it"),
    ("remapped_rows_uncorrected_total", "row_remapped", "memory rows remapped after uncorrected errors",
     "reset the GPU when its job ends"),
    ("remapped_rows_corrected_total", "row_remapped", "memory rows remapped after corrected errors",
     "reset the GPU when its job ends"),
    ("retired_pages_uncorrected_total", "page_retired", "memory pages retired after uncorrected errors",
     "reboot when its job ends"),
    ("retired_pages_corrected_total", "page_retired", "memory pages retired after corrected errors",
     "reboot when its job ends"),
)  # fmt: skip
"""Column, kind, what it counts, remedy."""

_FLAGS: tuple[tuple[str, bool, str, str], ...] = (
    ("remap_pending", True, "row_remap_pending", "a memory row waits to be remapped: reset the GPU"),
    ("remap_failed", True, "row_remap_failed",
     "a memory row could not be remapped: have the board replaced"),
    ("retired_pages_pending", True, "page_retirement_pending",
     "a memory page waits to be retired: reboot"),
    ("memory_unrepairable", True, "memory_unrepairable",
     "its memory has a fault that cannot be repaired: have the board replaced"),
    ("sram_threshold_exceeded", True, "sram_threshold_exceeded",
     "it had more SRAM errors than NVIDIA allows: have the board replaced"),
    ("inforom_valid", False, "inforom_invalid",
     "its InfoROM, where errors are recorded, is damaged: have the board checked"),
)  # fmt: skip
"""Column, the value that is bad, kind, what it means."""

_RECOVERIES = {
    "gpu_reset": "drain it and reset it (nvidia-smi --gpu-reset)",
    "node_reboot": "drain the node and reboot it",
    "drain_p2p": "stop peer-to-peer work on it, then reset it",
    "drain_and_reset": "drain it, then reset it",
}


def _health(before: Row | None, row: Row) -> list[_Change]:
    gpu = _gpu(row)
    found: list[_Change] = []
    for column, kind, things, remedy in _COUNTERS:
        if new := _growth(before, row, column):
            details = {"column": column, "new": new, "total": row[column]}
            message = f"{gpu}: {things}: {new} new, {row[column]} in all; {remedy}"
            found.append((kind, message, {"details": details}))
    for column, bad, kind, meaning in _FLAGS:
        if row.get(column) is bad and (before is None or before.get(column) is not bad):
            found.append((kind, f"{gpu}: {meaning}", {}))
    return [*found, *_recovery(before, row, gpu), *_fabric(before, row, gpu)]


def _recovery(before: Row | None, row: Row, gpu: str) -> list[_Change]:
    action = row.get("recovery_action")
    earlier = None if before is None else before.get("recovery_action")
    if action is None or action == (earlier or "none"):
        return []
    details = {"details": {"from": earlier, "to": action}}
    if action == "none":
        message = f"{gpu}: the driver asks for nothing any more"
        return [("recovery_action", message, {"severity": "info", **details})]
    remedy = _RECOVERIES.get(str(action), "see NVIDIA's documentation of it")
    return [("recovery_action", f"{gpu}: the driver asks for {action}: {remedy}", details)]


def _fabric(before: Row | None, row: Row, gpu: str) -> list[_Change]:
    health = row.get("fabric_health")
    earlier = None if before is None else before.get("fabric_health")
    if health is None or health == (earlier or "healthy"):
        return []
    details = {"details": {"from": earlier, "to": health}}
    if health == "healthy":
        return [
            (
                "fabric_unhealthy",
                f"{gpu}: its NVLink fabric is healthy again",
                {"severity": "info", **details},
            )
        ]
    message = f"{gpu}: its NVLink fabric suffers from {health}: see the fabric manager's log"
    return [("fabric_unhealthy", message, details)]


def _growth(before: Row | None, row: Row, column: str) -> int:
    """Growth of a counter; after a reset, its value."""
    now, then = row.get(column), None if before is None else before.get(column)
    if not isinstance(now, int) or not isinstance(then, int):
        return 0
    return now - then if now >= then else now


# Links and ports.


def _links(seen: ChangeState, rows: Sequence[Row]) -> tuple[ChangeState, list[Row]]:
    """Links often fail together, as with their switch: one event for each GPU, up or down."""
    known = dict(seen.rows)
    changed: dict[tuple[Value, Value, bool], list[Row]] = {}
    for row in rows:
        place = ("link", row["gpu_uuid"], row["link_type"], row["link"])
        is_up = row.get("active")
        if not isinstance(is_up, bool):
            continue
        # A link that was never up may have no bridge.
        if is_up is not known.get(place, {"active": is_up})["active"]:
            changed.setdefault((row["gpu_uuid"], row["link_type"], is_up), []).append(row)
        known[place] = {"active": is_up}
    events = []
    for (_, link_type, is_up), several in changed.items():
        numbers = [row["link"] for row in several]
        events.append(
            event(
                "link_up" if is_up else "link_down",
                _links_message(_gpu(several[0]), str(link_type), numbers, is_up=is_up),
                **_of(several[0]),
                details={"link_type": link_type, "links": numbers},
            )
        )
    return replace(seen, rows=known), events


_LINK_NAMES = {"nvlink": "NVLink", "c2c": "C2C link", "xgmi": "xGMI link"}


def _links_message(gpu: str, link_type: str, numbers: Sequence[Value], *, is_up: bool) -> str:
    name = _LINK_NAMES.get(link_type, link_type)
    several = f"{name}s" if len(numbers) > 1 else name
    which = f"{several} {', '.join(map(str, numbers))}"
    if is_up:
        return f"{gpu}: {which} up again"
    return f"{gpu}: {which} down: collectives over it are slow or fail; drain the node and reset the GPU"


def _port(before: Row | None, row: Row) -> list[_Change]:
    port = f"{row['device']} port {row['port']}"
    return [*_port_state(port, before, row), *_port_rate(port, before, row)]


def _port_rate(port: str, before: Row | None, row: Row) -> list[_Change]:
    """A link that trained at another rate; the last one is remembered while the port is down."""
    rate, earlier = (each.get("rate_bits_per_second") for each in (row, before or {}))
    if row.get("state") != "active" or rate is None or earlier is None or rate == earlier:
        return []
    from_gbit, to_gbit = f"{float(earlier) / 1e9:g}", f"{float(rate) / 1e9:g}"
    place = {"device": row["device"], "port": row["port"], "from": earlier, "to": rate}
    if float(rate) < float(earlier):
        what = f"{port} has {to_gbit} Gbit/s, and had {from_gbit}: check cable and switch port"
        return [("port_rate_lowered", what, {"details": place})]
    return [
        (
            "port_rate_raised",
            f"{port} has {to_gbit} Gbit/s, and had {from_gbit}",
            {"details": place},
        )
    ]


def _port_state(port: str, before: Row | None, row: Row) -> list[_Change]:
    state = row.get("state")
    earlier = None if before is None else before.get("state")
    # A port that was never up is one without a cable.
    if state is None or earlier is None or (state == "active") == (earlier == "active"):
        return []
    details = {
        "details": {"device": row["device"], "port": row["port"], "from": earlier, "to": state}
    }
    if state == "active":
        return [("port_up", f"{port} is active again", details)]
    physical = row.get("physical_state")
    how = f"{state} ({physical})" if physical else str(state)
    return [("port_down", f"{port} went {how}: check cable and switch", details)]


# The fast tier: slowdowns, and changed power limits.


def _gpu_samples(seen: ChangeState, rows: Sequence[Row]) -> tuple[ChangeState, list[Row]]:
    slowdowns, known = dict(seen.slowdowns), dict(seen.rows)
    events = []
    for row in rows:
        uuid = row["gpu_uuid"]
        if row.get("clocks_event_reasons") is not None:
            slowdown, told = _slowdown(slowdowns.get(uuid), row)
            events += told
            if slowdown is None:
                slowdowns.pop(uuid, None)
            else:
                slowdowns[uuid] = slowdown
        limit = row.get("power_limit_watts")
        if limit is not None:
            place = ("limit", uuid)
            earlier = known.get(place, {}).get("watts")
            if earlier is not None and earlier != limit:
                events.append(_limit_changed(row, earlier, limit))
            known[place] = {"watts": limit}
    return ChangeState(known, slowdowns), events


def _slowdown(before: Slowdown | None, row: Row) -> tuple[Slowdown | None, list[Row]]:
    ts_ms, reasons = row["ts"], row["clocks_event_reasons"]
    assert isinstance(ts_ms, int)
    assert isinstance(reasons, int)
    if bits := reasons & SLOWDOWN_BITS:
        now = (
            Slowdown(ts_ms, ts_ms, bits)
            if before is None
            else replace(before, seen_ms=ts_ms, bits=before.bits | bits)
        )
        if now.is_reported or ts_ms - now.since_ms < SLOWDOWN_BEGINS_MS:
            return now, []
        return replace(now, is_reported=True), [_slowdown_event(row, now, is_over=False)]
    if before is None:
        return None, []
    if not before.is_reported:
        # Too short to report; the reason may come back.
        return (before, []) if ts_ms - before.seen_ms < SLOWDOWN_BEGINS_MS else (None, [])
    if ts_ms - before.seen_ms < SLOWDOWN_ENDS_MS:
        return before, []
    return None, [_slowdown_event(row, before, is_over=True)]


def _slowdown_event(row: Row, slowdown: Slowdown, *, is_over: bool) -> Row:
    lasted_s = (slowdown.seen_ms - slowdown.since_ms) / 1000
    names = ", ".join(reason_names(slowdown.bits))
    if is_over:
        return event(
            "slowdown_ended",
            f"{_gpu(row)}: its clocks are free again after {span(lasted_s)} ({names})",
            **_of(row),
            duration_seconds=lasted_s,
            details={"reasons": slowdown.bits},
        )
    clock, celsius = row.get("sm_clock_mhz"), row.get("temperature_celsius")
    now = [
        *([] if clock is None else [f"SM clock {clock} MHz"]),
        *([] if celsius is None else [f"{celsius:g} °C"]),
    ]
    at = f" ({', '.join(now)})" if now else ""
    return event(
        "slowdown_began",
        f"{_gpu(row)}: its clocks are held down by {names}{at}",
        **_of(row),
        details={"reasons": slowdown.bits},
    )


def _limit_changed(row: Row, earlier: Value, limit: Value) -> Row:
    return event(
        "power_limit_changed",
        f"{_gpu(row)}: power limit set from {earlier:g} W to {limit:g} W",
        **_of(row),
        details={"from_watts": earlier, "to_watts": limit},
    )


def _gpu(row: Row) -> str:
    gpu = row.get("gpu")
    return f"GPU {row.get('gpu_uuid') if gpu is None else gpu}"
