"""The collector's own table: no agent may send it, and absent is absent."""

from gpuwarden.collector_samples import COLLECTOR_SAMPLES
from gpuwarden.schema import TABLES, UPSERTED, WIRE_TABLES


def test_it_is_stored_as_samples_are_and_comes_from_no_agent() -> None:
    name = COLLECTOR_SAMPLES.name
    assert TABLES[name] is COLLECTOR_SAMPLES
    assert name not in WIRE_TABLES and name not in UPSERTED
