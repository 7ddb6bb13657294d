"""Finds what has a name: nodes, GPUs by UUID or serial number, users and jobs of the last day."""

from collections.abc import Sequence

from gpuwarden.query import Querier, query_all
from gpuwarden_dashboards.read.fleet import Record

FOUND_MAX = 8
"""Of each kind."""


def _owners_sql(kind: str, column: str) -> str:
    """People and jobs that hold GPUs now, or did in the last day."""
    job = f"SELECT DISTINCT {column} AS name FROM"
    return f"""
        SELECT '{kind}' AS kind, name, NULL AS detail FROM (
            {job} process_samples WHERE ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
            UNION {job} waste_1h WHERE ts > now()::TIMESTAMP - INTERVAL 1 DAY
        ) WHERE contains(lower(name), $q)"""


_FOUND = f"""
    SELECT kind, name, detail FROM ({{sql}}) ORDER BY NOT starts_with(lower(name), $q), length(name), name
    LIMIT {FOUND_MAX}
"""
_KINDS = (
    """
        SELECT 'node' AS kind, node AS name, NULL AS detail FROM nodes
        WHERE forgotten_at IS NULL AND contains(lower(node), $q)""",
    """
        SELECT 'gpu' AS kind, gpu_uuid AS name, concat(node, ' GPU ', gpu) AS detail FROM gpus
        WHERE length($q) >= 3 AND replaced_by IS NULL
            AND (contains(lower(gpu_uuid), $q) OR starts_with(lower(serial), $q))""",
    _owners_sql("user", "username"),
    _owners_sql("job", "coalesce(slurm_job_id, pod)"),
)


async def read_matches(querier: Querier, words: str) -> Sequence[Record]:
    """Whose name has the words in it, best first: `kind`, `name`, `detail`. Raises QueryError."""
    params = {"q": words.strip().lower()}
    if not params["q"]:
        return []
    found = await query_all(querier, [(_FOUND.format(sql=sql), params) for sql in _KINDS])
    return [record for result in found for record in result.records()]
