"""Reads what tells that a GPU is sick: memory errors, repairs, and what the driver asks for.

Boards without ECC answer some of these calls with zeroes, which would say that memory nobody watches
is sound (GeForce does for remapped rows), so that most are asked of boards with ECC alone.
"""

from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.query import ASKED, Query, read_calls, read_columns
from gpuwarden_agent.probe import Value

AMPERE = 7
"""nvmlDeviceArchitecture_t of the first GPUs that remap rows; older ones retire pages."""


def read_health(query: Query, architecture: int | None, is_mig: bool) -> dict[str, Value]:
    """Columns of `gpu_health_samples`; `architecture` None: unknown; `is_mig`: MIG is on."""
    modes = query.ask(ROWS["ecc_modes"])
    has = conditions(
        has_ecc=query.is_there("ecc_modes"),
        is_ecc_on=modes is None or modes[0],
        architecture=architecture,
        is_mig=is_mig,
    )
    asked = [a for a in ASKED["gpu_health_samples"] if not a.field.needs or a.field.needs in has]
    values = read_columns(query, "health_fields", asked)
    return values | read_calls(query, "gpu_health_samples", values, has)


def conditions(
    *, has_ecc: bool, is_ecc_on: bool, architecture: int | None, is_mig: bool
) -> frozenset[str]:
    """What rows of `metrics.py` need, of what this GPU has."""
    if not has_ecc:
        return frozenset()
    has = {"ecc"}
    if is_ecc_on:
        has.add("ecc_on")
    if architecture is None or architecture >= AMPERE:
        has.add("remaps")
        # With MIG devices there, remapped rows are not told (nvidia-smi: N/A), and nothing says
        # that the fields know it; the call does.
        if not is_mig:
            has.add("remap_fields")
    if architecture is None or architecture < AMPERE:
        has.add("retires")
    return frozenset(has)
