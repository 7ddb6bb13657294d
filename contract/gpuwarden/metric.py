"""Defines a metric: name, type, unit, kind, cadence and source. The catalogue is `metrics.py`."""

from dataclasses import dataclass
from enum import Enum, StrEnum


class Type(Enum):
    """Column types. Integers are signed so that differences in SQL cannot wrap."""

    TIMESTAMP = "timestamp"  # UTC; milliseconds on the wire, TIMESTAMP in SQL
    STRING = "string"
    BOOL = "bool"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Kind(StrEnum):
    """What may be done with a metric's values."""

    GAUGE = "gauge"  # may be averaged
    COUNTER = "counter"  # only differences mean something; falls only when its source is reset
    FLAGS = "flags"  # a bit mask: decode it, never average it


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue."""

    name: str
    type: Type
    unit: str
    kind: Kind
    source: str
    """The NVML call, field id or file that the reading comes from."""
    meaning: str
    dcgm: str | None = None
    dcgm_49: str | None = None
    cadence_s: int = 1
    limits: tuple[float, float] | None = None
    """Smallest and largest value that can be true; the collector refuses rows outside."""
    summary: tuple[str, ...] | None = None
    """How a window of values is summarised, where kind and cadence do not say it."""

    @property
    def rollup(self) -> tuple[str, ...]:
        """How a window of values is summarised."""
        if self.summary is not None:
            return self.summary
        match self.kind:
            case Kind.GAUGE:
                return ("avg", "min", "max", "last") if self.cadence_s == 1 else ("avg", "max")
            case Kind.COUNTER:
                return ("delta",)
            case Kind.FLAGS:
                return ("share",)


F32, F64, I16, I32, I64 = Type.FLOAT32, Type.FLOAT64, Type.INT16, Type.INT32, Type.INT64
BOOL = Type.BOOL
GAUGE, COUNTER, FLAGS = Kind.GAUGE, Kind.COUNTER, Kind.FLAGS
PERCENT = (0.0, 100.0)
NOT_NEGATIVE = (0.0, float("inf"))
CELSIUS = (-60.0, 200.0)
AVG_MAX = ("avg", "max")
WITH_P95 = ("avg", "min", "max", "p95", "last")
