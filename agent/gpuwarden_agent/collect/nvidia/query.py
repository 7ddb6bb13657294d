"""Makes single calls about a GPU: counts failures, times calls, and maps return codes.

Invariants: a reading that the device does not support is absent and not asked for again for ten
minutes, because some calls are slow to fail. A failed reading is absent and counted. A return code that
means that the whole device or driver failed ends the read with a ProbeError, because every further call
would fail, too. A slow call is made less often.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.metrics import FIELDS, GROUPS
from gpuwarden_agent.collect.nvidia.nvml import (
    Call,
    DriverSample,
    Field,
    FieldQuery,
    FieldValue,
    NvmlCalls,
    NvmlError,
)
from gpuwarden_agent.collect.nvidia.timing import (
    FIELD_ROUNDS,
    SLOW_BATCH_MS,
    TIERS_S,
    TRIAL_CALLS,
    CallReport,
    CallTimes,
    slow_fields,
    slower,
    tier_after_trial,
)
from gpuwarden_agent.counters import quantile
from gpuwarden_agent.probe import ProbeError, Value

log = logging.getLogger(__name__)
T = TypeVar("T")

DRIVER_SAMPLES = "driver_samples"
"""Name of the calls for samples of the driver, in reports."""

LEARNED_FOR_S = 600.0
"""How long a reading that the device does not support is not asked for again."""

_NOT_THERE = frozenset(
    {
        nvml.NOT_SUPPORTED,
        nvml.FUNCTION_NOT_FOUND,
        nvml.ARGUMENT_VERSION_MISMATCH,
        nvml.DEPRECATED,
    }
)

_FATAL: dict[int, tuple[str, str]] = {
    nvml.GPU_IS_LOST: ("gpu_lost", "is lost: it fell off the bus; drain the node and reboot it"),
    nvml.GPU_NOT_FOUND: ("gpu_lost", "is gone: the driver no longer lists it"),
    nvml.RESET_REQUIRED: (
        "gpu_reset_required",
        "must be reset: drain it and nvidia-smi --gpu-reset",
    ),
    nvml.DRIVER_NOT_LOADED: ("driver_not_loaded", "has no driver: load the nvidia kernel module"),
    nvml.UNINITIALIZED: ("driver_not_loaded", "has no driver any more: load the kernel module"),
    nvml.LIB_RM_VERSION_MISMATCH: (
        "driver_mismatch",
        "cannot be read: library and kernel module of the driver differ in version; reboot",
    ),
    nvml.TIMEOUT: ("driver_timeout", "did not answer its driver in time"),
}
"""Return code to kind of event, and text about the GPU."""


def probe_error(error: NvmlError, gpu: int) -> ProbeError:
    """The error for a return code that concerns a whole GPU."""
    kind, words = _FATAL.get(error.code, ("probe_failed", "cannot be read"))
    return ProbeError(f"GPU {gpu} {words} ({error})", kind=kind)


def _code_name(code: int) -> str:
    return nvml.CODE_NAMES.get(code, str(code))


class Query:
    """Knows what one device supports and what its calls cost. Not thread-safe: one for each thread."""

    def __init__(self, device: NvmlCalls, clock: Clock) -> None:
        self.failed: Counter[str] = Counter()
        """Failed readings by "CALL: RETURN CODE"."""
        self.device = device
        self._gpu = device.index
        self._clock = clock
        self._not_there_until: dict[Hashable, float] = {}
        self._values: dict[Hashable, tuple[str, str, int]] = {}
        """Batch, NVML's name and last return code of each value that was read in a batch."""
        self._times: dict[str, CallTimes] = {}
        self._alone_ms: dict[str, dict[int, list[float]]] = {}
        """Timings of calls for one field alone, by slow batch and field id, while it is sorted out
        which fields are slow.
        """
        self._slow: dict[str, frozenset[int]] = {}
        """Field ids that are read in a slower tier than their batch."""
        self._tier_s = TIERS_S[0]
        self._due_s = TIERS_S[-1]

    def begin(self, tier_s: int, due_s: int) -> None:
        """Set the tier of the next calls, and the slowest tier that is due now: slow calls are skipped
        until their own tier is due.
        """
        self._tier_s = tier_s
        self._due_s = due_s

    def ask(self, *calls: Call, given: tuple[Hashable, ...] = ()) -> Any:
        """The first answer of calls that give the same reading, newest first; None: absent. `given`:
        arguments of the calls.

        Raises ProbeError when the whole device or driver failed.
        """
        for call in calls:
            name = call.reading
            if not self.is_there(name):
                continue
            if not self._is_due(name):
                # An older call may count differently (memory); its answers must not mix with these.
                return None
            try:
                return self._timed(call, given)
            except NvmlError as error:
                self.note(error, name)
        return None

    def ask_of(self, call: Call, *arguments: Hashable) -> Any:
        """The answer of a call about a part of the device: a link, a fan. Support is tracked for each
        part; times are tracked for all parts together. INVALID_ARGUMENT means that the part, or a
        counter of it, does not exist.
        """
        reading = (call.reading, *arguments)
        if not self.is_there(reading) or not self._is_due(call.reading):
            return None
        try:
            return self._timed(call, arguments, is_part=True)
        except NvmlError as error:
            self.note(error, reading)
            return None

    def ask_as(
        self, reading: tuple[Hashable, ...], make: Callable[..., T], *args: object
    ) -> T | None:
        """The result of `make(*args)`, which makes several calls. `reading` names what is read; its first
        part names the times.
        """
        name = str(reading[0])
        if not self.is_there(reading) or not self._is_due(name):
            return None
        code, began = nvml.SUCCESS, self._clock.monotonic()
        try:
            return make(*args)
        except NvmlError as error:
            code = error.code
            self.note(error, reading)
            return None
        finally:
            self._note_time(name, 1000 * (self._clock.monotonic() - began), code)

    def ask_samples(self, kind: int, since_us: int) -> Sequence[DriverSample] | None:
        """What the driver sampled by itself after `since_us`, as `NvmlCalls.samples`; empty: nothing new.
        None: not supported, or failed.
        """

        def samples() -> Sequence[DriverSample]:
            try:
                return self.device.samples(kind, since_us)
            except NvmlError as error:
                if error.code == nvml.NOT_FOUND:
                    return ()
                raise

        return self.ask_as((DRIVER_SAMPLES, kind), samples)

    def ask_fields(
        self, batch: str, asked: Sequence["ScopedField"]
    ) -> list[tuple["ScopedField", FieldValue]]:
        """Answers of one driver call for those fields that are due. A batch that is slow is read field by
        field for some rounds; its slow fields then have a call of their own in the next tier.
        """
        if batch in self._alone_ms:
            return self._ask_alone(batch, asked)
        slow = self._slow.get(batch, frozenset())
        answered = self._ask_batch(batch, [e for e in asked if e.query.field not in slow])
        later = [e for e in asked if e.query.field in slow]
        if later and slower(self._tier_s) <= self._due_s:
            answered += self._ask_batch(f"{batch}_slow", later, slower(self._tier_s))
        return answered

    def batch_of(self, asked: "ScopedField", batch: str) -> str:
        """The name under which the calls for a field of a batch are timed."""
        is_slow = asked.query.field in self._slow.get(batch, ())
        return f"{batch}_slow" if is_slow and f"{batch}_slow" in self._times else batch

    def is_slow(self, name: str) -> bool:
        """Whether the calls of that name were moved to a slower tier."""
        times = self._times.get(name)
        return times is not None and times.tier_s > times.own_tier_s

    def waiting(self, batch: str, asked: Iterable["ScopedField"]) -> set[str]:
        """Columns of the slow fields of a batch: a call of their own is as slow."""
        slow = self._slow.get(batch, frozenset())
        return {e.field.column for e in asked if e.query.field in slow and self.is_there(e.reading)}

    def is_there(self, reading: Hashable) -> bool:
        """Whether the reading may be supported: False for ten minutes after the device denied it."""
        if not self._not_there_until:
            return True
        return self._clock.monotonic() >= self._not_there_until.get(reading, -float("inf"))

    def note(self, error: NvmlError, reading: Hashable) -> None:
        """Learn from a return code. Raises ProbeError when the whole device or driver failed."""
        if error.code in _FATAL:
            raise probe_error(error, self._gpu) from error
        if error.code in _NOT_THERE:
            self._not_there_until[reading] = self._clock.monotonic() + LEARNED_FOR_S
            return
        self.count_failed(str(error))

    def count_failed(self, what: str) -> None:
        """Count a failed reading, and log it the first time."""
        self.failed[what] += 1
        if self.failed[what] == 1:
            log.warning("reading failed", extra={"gpu": self._gpu, "error": what})

    def note_value(self, batch: str, call: str, reading: Hashable, code: int) -> None:
        """Learn from the return code of one value of a batch, as from that of a call."""
        self._values[reading] = (batch, call, code)
        if code != nvml.SUCCESS:
            self.note(NvmlError(code, call), reading)

    def forget(self) -> None:
        """The device was opened again: ask for everything again."""
        self._not_there_until.clear()

    def calls(self) -> list[CallReport]:
        """Cost of each call that was made, then the values of the batches."""
        reports = [
            CallReport(
                call=times.call or name,
                reading=name,
                supported=times.code not in _NOT_THERE,
                code=_code_name(times.code),
                p50_ms=quantile(times.timings_ms, 0.5),
                p99_ms=quantile(times.timings_ms, 0.99),
                count=times.count,
                tier_s=times.tier_s,
            )
            for name, times in self._times.items()
        ]
        return reports + self._value_reports()

    def _value_reports(self) -> list[CallReport]:
        found: dict[tuple[str, str], CallReport] = {}
        for reading, (batch, call, code) in self._values.items():
            name = str(reading[0] if isinstance(reading, tuple) else reading)
            report = CallReport(
                call=call,
                reading=name,
                supported=code not in _NOT_THERE,
                code=_code_name(code),
                p50_ms=None,
                p99_ms=None,
                count=0,
                tier_s=self._times[batch].tier_s,
            )
            # A value of one link counts as one of the GPU.
            if (call, name) not in found or report.supported:
                found[call, name] = report
        return list(found.values())

    def _ask_batch(
        self, batch: str, asked: Sequence["ScopedField"], tier_s: int | None = None
    ) -> list[tuple["ScopedField", FieldValue]]:
        """`tier_s`: that of a batch of slow fields, which moves no more."""
        if not asked or (tier_s is None and not self._is_due(batch)):
            return []
        answers: Sequence[FieldValue] = ()
        code, began_s = nvml.SUCCESS, self._clock.monotonic()
        try:
            answers = self.device.field_values([each.query for each in asked])
        except NvmlError as error:
            code = error.code
            self.note(error, (batch,))
        finally:
            times = self._times_of(batch, tier_s or self._tier_s)
            times.add(1000 * (self._clock.monotonic() - began_s), code)
        has_next = tier_s is None and slower(times.own_tier_s) != times.own_tier_s
        if (
            has_next
            and times.count == TRIAL_CALLS
            and (quantile(times.timings_ms, 0.5) or 0.0) > SLOW_BATCH_MS
        ):
            self._alone_ms[batch] = {}
        return list(zip(asked, answers, strict=False))

    def _ask_alone(
        self, batch: str, asked: Sequence["ScopedField"]
    ) -> list[tuple["ScopedField", FieldValue]]:
        alone_ms = self._alone_ms[batch]
        answered: list[tuple[ScopedField, FieldValue]] = []
        for field in dict.fromkeys(each.query.field for each in asked):
            same = [each for each in asked if each.query.field == field]
            began_s = self._clock.monotonic()
            try:
                answers = self.device.field_values([each.query for each in same])
            except NvmlError as error:
                self.note(error, (batch,))
                continue
            finally:
                took_ms = 1000 * (self._clock.monotonic() - began_s)
                alone_ms.setdefault(field, []).append(took_ms)
            answered += zip(same, answers, strict=False)
        if max(map(len, alone_ms.values()), default=FIELD_ROUNDS) >= FIELD_ROUNDS:
            self._sort_out(batch)
        return answered

    def _sort_out(self, batch: str) -> None:
        alone_ms = self._alone_ms.pop(batch)
        times = self._times[batch]
        slow = slow_fields(quantile(times.timings_ms[:TRIAL_CALLS], 0.5) or 0.0, alone_ms)
        self._slow[batch] = slow
        if not slow:
            self._settle_tier(batch, times)
            return
        log.info(
            "slow fields moved to a slower tier",
            extra={
                "gpu": self._gpu,
                "reading": batch,
                "fields": {
                    field: round(quantile(alone_ms[field], 0.5) or 0, 1) for field in sorted(slow)
                },
                "from_s": times.own_tier_s,
                "to_s": slower(times.own_tier_s),
            },
        )

    def _is_due(self, name: str) -> bool:
        times = self._times.get(name)
        if times is None:
            return True
        if times.own_tier_s > self._tier_s:
            # First called for a description, now for samples: the fastest use decides.
            times.own_tier_s = self._tier_s
            self._settle_tier(name, times)
        return times.tier_s <= self._due_s

    def _timed(self, call: Call, arguments: tuple[Hashable, ...], *, is_part: bool = False) -> Any:
        code, began = nvml.SUCCESS, self._clock.monotonic()
        try:
            return self.device.ask(call, *arguments)
        except NvmlError as error:
            code = error.code
            if code in call.answers:
                code = nvml.SUCCESS
                return call.answers[error.code]
            if is_part and code == nvml.INVALID_ARGUMENT:
                code = nvml.NOT_SUPPORTED
                raise NvmlError(code, error.call) from error
            raise
        finally:
            self._note_time(call.reading, 1000 * (self._clock.monotonic() - began), code)

    def _note_time(self, name: str, duration_ms: float, code: int) -> None:
        times = self._times_of(name, self._tier_s)
        times.add(duration_ms, code)
        if times.count == TRIAL_CALLS:
            self._settle_tier(name, times)

    def _times_of(self, name: str, tier_s: int) -> CallTimes:
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = CallTimes(tier_s)
            times.call = self.device.called
        return times

    def _settle_tier(self, name: str, times: CallTimes) -> None:
        times.tier_s = tier_after_trial(times.own_tier_s, times.timings_ms)
        if times.tier_s != times.own_tier_s:
            log.info(
                "slow driver call moved to a slower tier",
                extra={
                    "gpu": self._gpu,
                    "call": times.call or name,
                    "reading": name,
                    "p50_ms": round(quantile(times.timings_ms, 0.5) or 0, 1),
                    "from_s": times.own_tier_s,
                    "to_s": times.tier_s,
                },
            )


@dataclass(frozen=True, slots=True)
class ScopedField:
    """A field of one scope, and the key of its value."""

    reading: Hashable
    field: Field
    query: FieldQuery

    @property
    def call(self) -> str:
        """Its name in reports and errors."""
        return f"nvmlDeviceGetFieldValues({self.query.field})"


def asked_once(fields: Iterable[Field]) -> tuple[ScopedField, ...]:
    """Fields with one value for the GPU; their columns are the keys."""
    return tuple(ScopedField(f.column, f, f.query) for f in fields)


def asked_of_link(fields: Iterable[Field], link: int) -> tuple[ScopedField, ...]:
    """Fields with one value for each link."""
    return tuple(ScopedField((f.column, f.id, link), f, FieldQuery(f.id, link)) for f in fields)


ASKED = {table: asked_once(fields) for table, fields in FIELDS.items()}


def read_fields(query: Query, batch: str, asked: Iterable[ScopedField]) -> dict[Hashable, Value]:
    """Values of the fields that are due, by reading, without unsupported ones. `batch` names them."""
    wanted = [each for each in asked if query.is_there(each.reading)]
    if not wanted or not query.is_there((batch,)):
        return {}
    values: dict[Hashable, Value] = {}
    for each, answer in query.ask_fields(batch, wanted):
        # INVALID_ARGUMENT for one value of a batch: a field newer than this driver.
        code = nvml.NOT_SUPPORTED if answer.code == nvml.INVALID_ARGUMENT else answer.code
        query.note_value(query.batch_of(each, batch), each.call, each.reading, code)
        if answer.value is not None:
            values[each.reading] = each.field.value(answer.value)
    return values


def read_columns(query: Query, batch: str, asked: Iterable[ScopedField]) -> dict[str, Value]:
    """Values of fields that were `asked_once`, by column."""
    return {str(name): v for name, v in read_fields(query, batch, asked).items()}


def read_calls(
    query: Query, table: str, known: Collection[str] = (), has: Collection[str] = ()
) -> dict[str, Value]:
    """Columns of a table that have calls of their own, without `known` ones. `has`: the needs of rows
    that this GPU fulfils.
    """
    values: dict[str, Value] = {}
    for same in GROUPS[table]:
        row = same[0]
        columns = row.columns
        if row.needs and row.needs not in has:
            continue
        wanted = [column for column in columns if column not in known and column not in values]
        if not wanted:
            continue
        answer = query.ask_of(row, *row.part) if row.part else query.ask(*same)
        if answer is None:
            continue
        if len(columns) == 1 and row.value is None and row.over == 1:
            values[columns[0]] = answer
            continue
        told = zip(columns, row.values(answer), strict=False)
        values.update({c: v for c, v in told if v is not None and c in wanted})
    return values
