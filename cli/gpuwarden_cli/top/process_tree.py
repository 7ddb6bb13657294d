"""Arranges GPU processes as a tree: a job or user, its processes, and what each consists of.

A row has `depth` (0, 1, 2), `is_open` where rows can be below it, and the columns of a process. Where a process uses
several GPUs, its CPU and host memory count once. `tree_sql` and `tree_rows` make the same rows, in a collector and in
memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwarden_cli.top.request import Row, RowsRequest

PARTS = ("main_cpu_percent", "pin_cpu_percent", "loader_workers", "loader_cpu_percent", "children_cpu_percent")  # fmt: skip
"""Columns of `process_samples` on the parts of a process."""
SHOWN = ("memory_bytes", "sm_percent", "cpu_percent", "rss_bytes", "age_s")
STARTED_BY = "started by"
MAIN, PIN, CHILDREN = "busiest thread", "pinning thread", "other descendants"


def group_of(process: Row) -> str:
    """The key of the tree's first level: the job, else the user."""
    if process.get("job") is not None:
        return f"job {process['job']}"
    return f"user {process['username']}" if process.get("username") is not None else "unknown user"


def _total(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _merged(rows: Sequence[Row]) -> dict[str, Any]:
    """One process of its rows on several GPUs."""
    ordered = sorted(rows, key=lambda row: (row["gpu"] is None, row["gpu"] or 0, row["gpu_uuid"]))
    first = ordered[0]
    gpus = ",".join(str(row["gpu_uuid"] if row["gpu"] is None else row["gpu"]) for row in ordered)
    shares = _total([row["sm_percent"] for row in rows])
    return {
        **{name: first.get(name) for name in ("node", "gpu_uuid", "pid", "username", "job", "command", "state", "started_by", *PARTS)},
        "key": f"process {first['node']} {first['pid']}",
        "place": f"{first['node']}/{gpus}",
        "gpus": ordered,
        "memory_bytes": _total([row["memory_bytes"] for row in rows]),
        "sm_percent": None if shares is None else shares / len({row["gpu_uuid"] for row in rows}),
        **{name: _largest([row[name] for row in rows]) for name in ("cpu_percent", "rss_bytes", "age_s")},
    }  # fmt: skip


def _group(key: str, processes: Sequence[Mapping[str, Any]], *, is_open: bool) -> dict[str, Any]:
    uuids = {row["gpu_uuid"] for process in processes for row in process["gpus"]}
    shares = _total([row["sm_percent"] for process in processes for row in process["gpus"]])
    count = len(processes)
    return {
        "process": key, "depth": 0, "is_open": is_open, "place": key, "pid": None, "node": None, "gpu_uuid": None,
        "state": None, "username": _largest([process["username"] for process in processes]), "job": processes[0]["job"],
        "command": f"{count} process{'' if count == 1 else 'es'}, {len(uuids)} GPU{'' if len(uuids) == 1 else 's'}",
        "sm_percent": None if shares is None else shares / len(uuids),
        **{name: _total([process[name] for process in processes]) for name in ("memory_bytes", "cpu_percent", "rss_bytes")},
        "age_s": _largest([process["age_s"] for process in processes]),
    }  # fmt: skip


def _parts(process: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What started a process, and what it consists of: its GPUs if it has several, threads and descendants."""
    empty = {
        **dict.fromkeys(("pid", "username", "job", "gpu_uuid", "command", "state", *SHOWN)),
        "depth": 2, "is_open": None, "node": process["node"],
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    if process["started_by"]:
        rows.append({"place": STARTED_BY, "command": process["started_by"]})
    if len(process["gpus"]) > 1:
        for gpu in process["gpus"]:
            name = gpu["gpu_uuid"] if gpu["gpu"] is None else gpu["gpu"]
            rows.append(
                {"place": f"GPU {name}", **{k: gpu[k] for k in ("gpu_uuid", "memory_bytes", "sm_percent")}}
            )  # fmt: skip
    workers = process["loader_workers"]
    mean = process["loader_cpu_percent"]
    for label, cpu in (
        (MAIN, process["main_cpu_percent"]),
        (PIN, process["pin_cpu_percent"]),
        (
            f"{workers} loader worker{'' if workers == 1 else 's'}" if workers else "",
            None if mean is None or not workers else workers * mean,
        ),
        (CHILDREN, process["children_cpu_percent"]),
    ):
        if label and (cpu is not None or label.endswith(("worker", "workers"))):
            rows.append({"place": label, "cpu_percent": cpu})
    for number, row in enumerate(rows):
        yield {**empty, **row, "process": f"{process['key']} {number}"}


def _ordered(rows: list[dict[str, Any]], request: RowsRequest, key: str) -> list[dict[str, Any]]:
    """By the sort column with what is absent last, then by `key`: two rows never change places by chance."""
    rows.sort(key=lambda row: row[key])
    if not request.sort:
        return rows[::-1] if request.is_descending else rows
    known = [row for row in rows if row.get(request.sort) is not None]
    known.sort(key=lambda row: row[request.sort], reverse=request.is_descending)
    return known + [row for row in rows if row.get(request.sort) is None]


def tree_rows(processes: Sequence[Row], request: RowsRequest) -> list[dict[str, Any]]:
    """All rows of the tree of processes, in order. Closed rows have none below them."""
    merged: dict[tuple[Any, Any], list[Row]] = {}
    for row in processes:
        merged.setdefault((row["node"], row["pid"]), []).append(row)
    groups: dict[str, list[dict[str, Any]]] = {}
    for rows in merged.values():
        process = _merged(rows)
        groups.setdefault(group_of(process), []).append(process)
    heads = [
        {**_group(key, below, is_open=key not in request.toggled), "below": below}
        for key, below in groups.items()
    ]
    found: list[dict[str, Any]] = []
    for head in _ordered(heads, request, "process"):
        below = head.pop("below")
        found.append(head)
        if not head["is_open"]:
            continue
        for process in _ordered(below, request, "key"):
            is_open = process["key"] in request.toggled
            row = {name: value for name, value in process.items() if name not in ("gpus", "key", "started_by", *PARTS)}  # fmt: skip
            found.append({**row, "process": process["key"], "depth": 1, "is_open": is_open})
            if is_open:
                found += _parts(process)
    return found


_BY_GPU = "ORDER BY gpu NULLS LAST, gpu_uuid"
_FIRST = ", ".join(f"first({name} {_BY_GPU}) AS {name}" for name in ("gpu_uuid", "username", "job", "command", "state", "started_by", *PARTS))  # fmt: skip
_PART = "{{'place': {place}, 'gpu_uuid': {uuid}, 'memory': {memory}, 'sm': {sm}, 'cpu': {cpu}, 'command': {command}}}"


def _part_sql(place: str, cpu: str = "NULL", command: str = "NULL") -> str:
    return _PART.format(
        place=place, uuid="NULL::VARCHAR", memory="NULL::BIGINT", sm="NULL::DOUBLE", cpu=f"({cpu})::DOUBLE",
        command=f"({command})::VARCHAR",
    )  # fmt: skip


_GPU_PARTS = _PART.format(
    place="'GPU ' || coalesce(g.gpu::VARCHAR, g.gpu_uuid)", uuid="g.gpu_uuid", memory="g.memory::BIGINT",
    sm="g.sm::DOUBLE", cpu="NULL::DOUBLE", command="NULL::VARCHAR",
)  # fmt: skip
_WORKERS = "loader_workers || ' loader worker' || if(loader_workers = 1, '', 's')"
_PARTS_SQL = f"""list_concat(
    CASE WHEN started_by != '' THEN [{_part_sql(f"'{STARTED_BY}'", command="started_by")}] ELSE [] END,
    CASE WHEN len(gpus) > 1 THEN list_transform(gpus, lambda g: {_GPU_PARTS}) ELSE [] END,
    CASE WHEN main_cpu_percent IS NOT NULL THEN [{_part_sql(f"'{MAIN}'", "main_cpu_percent")}] ELSE [] END,
    CASE WHEN pin_cpu_percent IS NOT NULL THEN [{_part_sql(f"'{PIN}'", "pin_cpu_percent")}] ELSE [] END,
    CASE WHEN loader_workers > 0 THEN [{_part_sql(_WORKERS, "loader_workers * loader_cpu_percent")}] ELSE [] END,
    CASE WHEN children_cpu_percent IS NOT NULL
        THEN [{_part_sql(f"'{CHILDREN}'", "children_cpu_percent")}] ELSE [] END
)"""
_OPEN = "list_contains(from_json($toggled, '[\"VARCHAR\"]'), process)"


def tree_sql(processes: str, request: RowsRequest) -> str:
    """CTEs that end with `tree`, whose rows are in order of `line_`, of a query of rows of processes; $toggled: JSON."""
    way = "DESC" if request.is_descending else "ASC"
    # The name is one of our columns, not user input.
    order = f'"{request.sort}" {way} NULLS LAST, process' if request.sort else f"process {way}"
    return f"""
flat AS ({processes}),
merged AS (
    SELECT node, pid, 'process ' || node || ' ' || pid AS process, {_FIRST},
        node || '/' || string_agg(coalesce(gpu::VARCHAR, gpu_uuid), ',' {_BY_GPU}) AS place,
        list({{'gpu': gpu, 'gpu_uuid': gpu_uuid, 'memory': memory_bytes, 'sm': sm_percent}} {_BY_GPU}) AS gpus,
        sum(memory_bytes)::BIGINT AS memory_bytes, sum(sm_percent) AS sm_sum,
        sum(sm_percent) / count(DISTINCT gpu_uuid) AS sm_percent,
        max(cpu_percent) AS cpu_percent, max(rss_bytes) AS rss_bytes, max(age_s) AS age_s
    FROM flat GROUP BY node, pid
),
members AS (
    SELECT *, {_OPEN} AS is_open,
        coalesce('job ' || job, 'user ' || username, 'unknown user') AS head
    FROM merged
),
heads AS (
    SELECT head AS process, NOT {_OPEN.replace("process", "head")} AS is_open, head AS place,
        NULL::BIGINT AS pid, NULL::VARCHAR AS state, max(username) AS username, max(job) AS job,
        len(list_distinct(flatten(list(list_transform(gpus, lambda g: g.gpu_uuid))))) AS gpu_count,
        sum(memory_bytes)::BIGINT AS memory_bytes, sum(sm_sum) / gpu_count AS sm_percent, sum(cpu_percent) AS cpu_percent,
        sum(rss_bytes)::BIGINT AS rss_bytes, max(age_s) AS age_s,
        format('{{}} process{{}}, {{}} GPU{{}}', count(*), if(count(*) = 1, '', 'es'), gpu_count, if(gpu_count = 1, '', 's'))
            AS command
    FROM members GROUP BY head
),
placed_heads AS (SELECT *, row_number() OVER (ORDER BY {order}) AS head_line FROM heads),
placed AS (
    SELECT m.*, h.head_line, row_number() OVER (PARTITION BY m.head ORDER BY {_of("m", order)}) AS process_line
    FROM members m JOIN placed_heads h ON h.process = m.head WHERE h.is_open
),
parts AS (
    SELECT *, unnest({_PARTS_SQL}) AS part, generate_subscripts({_PARTS_SQL}, 1) AS part_line
    FROM placed WHERE is_open
),
tree_rows AS (
    SELECT process, 0 AS depth, is_open, place, pid, NULL AS node, NULL AS gpu_uuid, username, job, command, state,
        memory_bytes, sm_percent, cpu_percent, rss_bytes, age_s, head_line, 0 AS process_line, 0 AS part_line
    FROM placed_heads
    UNION ALL BY NAME
    SELECT process, 1 AS depth, is_open, place, pid, node, gpu_uuid, username, job, command, state, memory_bytes, sm_percent,
        cpu_percent, rss_bytes, age_s, head_line, process_line, 0 AS part_line
    FROM placed
    UNION ALL BY NAME
    SELECT process || ' ' || (part_line - 1) AS process, 2 AS depth, part.place AS place, node,
        part.gpu_uuid AS gpu_uuid, part.memory AS memory_bytes, part.sm AS sm_percent, part.cpu AS cpu_percent, part.command AS command,
        head_line, process_line, part_line
    FROM parts
),
tree AS (
    SELECT * EXCLUDE (head_line, process_line, part_line),
        row_number() OVER (ORDER BY head_line, process_line, part_line) AS line_
    FROM tree_rows
)"""


def _of(alias: str, order: str) -> str:
    """The order with its columns of one table."""
    return ", ".join(f"{alias}.{part}" for part in order.split(", "))
