"""Values of nvmlDeviceGetFieldValues: many in one driver call, each with a return code of its own."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from gpuwarden_agent.collect.nvidia import nvml_driver as nvml
from gpuwarden_agent.collect.nvidia.nvml_driver import Device, FieldQuery
from gpuwarden_agent.collect.nvidia.query import Asker
from gpuwarden_agent.probe import Value

NS = 10**9
KIB = 1024


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a batch: its column, and the way from NVML's unit to the column's: `times / over`,
    or `decoded` where that is no factor.
    """

    column: str
    id: int
    times: int = 1
    over: int = 1
    scope: int = 0
    decoded: Callable[[int], Value] | None = None

    def value(self, raw: float) -> Value:
        """In the column's unit; None where the number cannot mean anything."""
        if self.decoded is not None:
            return self.decoded(raw) if isinstance(raw, int) else None
        scaled = raw * self.times
        # Whole numbers stay whole: a float would round counters above 2**53.
        return scaled if self.over == 1 else scaled / self.over


@dataclass(frozen=True, slots=True)
class Asked:
    """A field of one scope, and what its value is known as to the asker."""

    reading: Hashable
    field: Field
    query: FieldQuery

    @property
    def call(self) -> str:
        """Its name in reports and errors."""
        return f"nvmlDeviceGetFieldValues({self.query.field})"


def asked_once(fields: Sequence[Field]) -> tuple[Asked, ...]:
    """Fields that the GPU has one value of: known by their columns."""
    return tuple(Asked(f.column, f, FieldQuery(f.id, f.scope)) for f in fields)


def asked_of_link(fields: Sequence[Field], link: int) -> tuple[Asked, ...]:
    """Fields that every link has one value of."""
    return tuple(Asked((f.column, f.id, link), f, FieldQuery(f.id, link)) for f in fields)


def read_fields(
    device: Device, asker: Asker, batch: str, asked: Sequence[Asked]
) -> dict[Hashable, Value]:
    """Values by reading; absent are those that the GPU does not have. `batch` names the call."""
    wanted = [each for each in asked if asker.is_there(each.reading)]
    if not wanted:
        return {}
    queries = [each.query for each in wanted]
    answers = asker.ask_as((batch,), device.field_values, queries)
    values: dict[Hashable, Value] = {}
    for each, answer in zip(wanted, answers or (), strict=False):
        # INVALID_ARGUMENT for one value of a batch: a field newer than this driver.
        code = nvml.NOT_SUPPORTED if answer.code == nvml.INVALID_ARGUMENT else answer.code
        asker.note_value(batch, each.call, each.reading, code)
        if answer.value is not None:
            values[each.reading] = each.field.value(answer.value)
    return values


def read_columns(
    device: Device, asker: Asker, batch: str, asked: Sequence[Asked]
) -> dict[str, Value]:
    """Values of fields that were `asked_once`, by column."""
    return {str(name): v for name, v in read_fields(device, asker, batch, asked).items()}
