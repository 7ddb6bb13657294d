"""Makes the SQL of hours, waste and energy by name, for the client.

It reads the view `waste`, which includes the current hour, from `$since` until now.
"""

from collections.abc import Mapping

from gpuwarden.waste import CATEGORIES

BY: Mapping[str, str] = {
    "username": "username",
    "node": "node",
    "job": "job",
    "account": "(SELECT any_value(account) FROM (SELECT job AS of_slurm, account FROM slurm_jobs) WHERE of_slurm = job)",
    "team": "team",
    "model": "model",
    "gpu": "format('{} GPU {}', node, coalesce(gpu::VARCHAR, gpu_uuid))",
}
"""Groups of a report, as SQL on a row of `waste`."""
NOBODY = "(none)"
"""Name of the line without an owner."""


def asked_sql(by: str) -> str:
    """The CTE `asked`: rows of `waste` with `by_name`. Simulated GPUs count only if there are no others."""
    return (
        f"asked AS (SELECT *, {BY[by]} AS by_name FROM waste WHERE ts >= $since::TIMESTAMP "
        "QUALIFY simulated = bool_and(simulated) OVER ())"
    )


def report_sql(by: str) -> str:
    """SELECT of one line per name, most waste first, and the total at the end, with `is_total`."""
    return f"""
WITH {asked_sql(by)}
SELECT
    coalesce(by_name, '{NOBODY}') AS name, grouping(by_name) = 1 AS is_total,
    bool_or(simulated) AS simulated, sum(gpu_hours) AS gpu_hours, {_CATEGORIES},
    sum(usd) AS usd, sum(usd) FILTER (is_waste) AS wasted_usd, count(usd) < count(*) AS lacks_price,
    100 * coalesce(sum(gpu_hours) FILTER (energy_kwh IS NOT NULL), 0) / sum(gpu_hours)
        AS measured_percent,
    sum(energy_kwh) AS energy_kwh, sum(energy_kwh) FILTER (is_waste) AS wasted_kwh,
    sum(energy_usd) AS energy_usd, sum(co2_kg) AS co2_kg
FROM asked
GROUP BY GROUPING SETS ((by_name), ())
ORDER BY is_total, wasted_usd DESC NULLS LAST, gpu_hours DESC, name
"""


_CATEGORIES = ", ".join(
    f"coalesce(sum(gpu_hours) FILTER (category = '{category}'), 0) AS {category}"
    for category in CATEGORIES
)
