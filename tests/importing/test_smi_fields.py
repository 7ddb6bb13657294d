"""Every field leads to an existing column, in a quantity that fits it."""

from tests.each import each

from gpuwarden.metrics import METRICS
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_importing.smi_fields import (
    ALIASES,
    APP_FIELDS,
    CSV_FIELDS,
    XML_FIELDS,
    canonical,
)

FIELDS = [*CSV_FIELDS.items(), *XML_FIELDS.items(), *APP_FIELDS.items()]


@each(("name", "field"), FIELDS)
def test_a_field_has_a_column_of_its_quantity(name, field) -> None:
    assert WIRE_TABLES[field.table].column(field.column)
    units = {m.name: m.unit for m in METRICS.get(field.table, ())}
    if field.quantity in ("percent", "bytes", "watts", "celsius", "mhz", "seconds"):
        assert units.get(field.column, field.quantity) == field.quantity


def test_second_names_lead_to_first_ones() -> None:
    assert all(canonical(first) == first for first in ALIASES.values())
    assert canonical("clocks_throttle_reasons.active") == "clocks_event_reasons.active"


def test_the_fields_of_a_real_driver_are_known_or_named(data) -> None:
    """Nothing that the catalogue has a column for is missed by a misspelt name."""
    text = (data / "captures" / "linux-x86_64__nvidia-l40s__595.80.txt").read_text()
    header = next(
        line for line in text.splitlines() if line.startswith("timestamp, driver_version")
    )
    told = {canonical(cell.partition(" [")[0]) for cell in header.split(", ")}
    ours = {name for name in CSV_FIELDS if not name.startswith("clocks_event_reasons_counters")}
    assert ours - told <= {"remapped_rows.sbe", "retired_pages.sbe"}
