"""Reads a collector for `top`: one query per refresh, with the totals in it."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuwarden.alert import PLACE_SQL, WORST_FIRST
from gpuwarden.clock import SystemClock
from gpuwarden.query import Querier, QueryError
from gpuwarden_agent.worker import Worker
from gpuwarden_cli.read.remote import RemoteQuerier, unjudged_at
from gpuwarden_cli.top.process_tree import PARTS, tree_sql
from gpuwarden_cli.top.request import (
    GPU_METRICS,
    HOST_METRICS,
    Answer,
    GpuAnswer,
    GpuRequest,
    NodeAnswer,
    NodeRequest,
    Request,
    Row,
    RowsAnswer,
    RowsRequest,
    SourceError,
    TopView,
    WhyAnswer,
    WhyRequest,
)
from gpuwarden_client.http import CallError, CollectorEndpoint, RefusedError
from gpuwarden_dashboards.read.fleet import STATES, SUMS, cells_sql

TIMEOUT_S = 20.0
PAST_S = 2.0
"""Shortest interval in which a history is read again."""
JUDGED_S = 2.0
"""Interval of queries of `/v1/judgement`."""
_RECENT = "ts > now()::TIMESTAMP - INTERVAL 30 SECOND"
_READINGS = """{'model': i.model, 'memory_used_bytes': n.memory_used_bytes,
    'memory_total_bytes': n.memory_total_bytes, 'temperature_celsius': n.temperature_celsius,
    'sm_clock_mhz': n.sm_clock_mhz, 'simulated': i.simulated}"""

_NAMES = ", ".join(f"'{name}'" for name in STATES)
_FLEET = f"""
cells AS MATERIALIZED ({cells_sql(_READINGS)}),
fleet AS (
    SELECT node, gpu, gpu_uuid, node || '/' || coalesce(gpu::VARCHAR, gpu_uuid) AS place,
        [{_NAMES}][1 + state % 16] AS state, state // 16 AS level,
        value.*, 100.0 * value.memory_used_bytes / nullif(value.memory_total_bytes, 0) AS memory_percent,
        util_percent, power_watts, usd_per_hour, usd_wasted
    FROM cells
),
totals AS (
    SELECT {SUMS}, bool_or(value.simulated) AS simulated, strftime(now()::TIMESTAMP, '%H:%M:%S UTC') AS at,
        (SELECT count(*) FROM alerts_now WHERE state = 'firing') AS alerts,
        (SELECT count(*) FROM alerts_now WHERE state = 'firing' AND severity = 'critical' AND muted IS NULL)
            AS critical
    FROM cells
)"""
"""Every expected GPU, and the totals."""


def _newest(whose: str) -> str:
    """The newest row of each process."""
    return f"""
newest AS (
    SELECT * FROM process_samples WHERE {_RECENT} AND {whose}
    QUALIFY row_number() OVER (PARTITION BY gpu_uuid, pid ORDER BY ts DESC) = 1
)"""


_NODES = """
gpus_of AS (
    SELECT node, count(*) AS gpus, count(*) FILTER (state = 'idle') AS idle, avg(util_percent) AS util_percent,
        100.0 * sum(memory_used_bytes) / nullif(sum(memory_total_bytes), 0) AS memory_percent,
        sum(power_watts) AS power_watts, max(temperature_celsius) AS temperature_celsius,
        sum(usd_per_hour) AS usd_per_hour, sum(usd_wasted) AS usd_wasted,
        mode(model) AS model
    FROM fleet GROUP BY node
),
trouble AS (
    SELECT node, count(*) AS alerts,
        max(list_position(['info', 'warning', 'critical'], severity)) FILTER (muted IS NULL) AS level
    FROM alerts_now WHERE state = 'firing' GROUP BY node
),
rows_of AS (
    SELECT n.node, CASE
            WHEN n.unbilled_from IS NOT NULL AND n.unbilled_until IS NULL THEN 'left'
            WHEN n.last_seen_at > now()::TIMESTAMP - INTERVAL 1 MINUTE THEN 'reports'
            WHEN n.last_seen_at IS NULL THEN 'imported'
            ELSE 'silent'
        END AS state,
        g.* EXCLUDE (node, gpus, idle), coalesce(g.gpus, 0) AS gpus, coalesce(g.idle, 0) AS idle,
        coalesce(t.alerts, 0) AS alerts, t.level,
        h.cpu_util_percent AS cpu_percent,
        100.0 * h.memory_used_bytes / nullif(h.memory_total_bytes, 0) AS host_memory_percent,
        array_to_string(list_transform(map_entries(labels), lambda e: e.key || '=' || e.value), ' ') AS labels
    FROM nodes n LEFT JOIN gpus_of g USING (node) LEFT JOIN nodes_now h USING (node)
    LEFT JOIN trouble t USING (node)
    WHERE n.forgotten_at IS NULL AND ($node IS NULL OR n.node = $node) AND $job IS NULL
)"""


_GPUS = """
held AS (
    SELECT coalesce(i.parent_gpu_uuid, gpu_uuid) AS gpu_uuid,
        arg_max({'username': username, 'job': job, 'process': process_name}, coalesce(memory_used_bytes, 0)) AS holder
    FROM gpus_now n LEFT JOIN (SELECT gpu_uuid, parent_gpu_uuid FROM gpus) i USING (gpu_uuid)
    WHERE coalesce(username, job, process_name) IS NOT NULL GROUP BY ALL
),
alerts_of AS (
    SELECT gpu_uuid, string_agg(DISTINCT rule, ' ' ORDER BY rule) AS alert
    FROM alerts_now WHERE state = 'firing' AND gpu_uuid IS NOT NULL GROUP BY gpu_uuid
),
rows_of AS (
    SELECT f.*, h.holder.username, h.holder.job, h.holder.process AS process, a.alert
    FROM fleet f LEFT JOIN alerts_of a USING (gpu_uuid) LEFT JOIN held h USING (gpu_uuid)
    WHERE ($node IS NULL OR f.node = $node) AND ($job IS NULL OR h.holder.job = $job)
)"""
_OF_PROCESS = """
    node || '/' || coalesce(gpu::VARCHAR, gpu_uuid) AS place, node, gpu, gpu_uuid, pid,
    gpu_uuid || ' ' || pid AS process, username, job, gpu_memory_bytes AS memory_bytes,
    sm_util_percent AS sm_percent, cpu_percent, rss_bytes, coalesce(command, process_name) AS command,
    state, ancestors AS started_by, date_diff('second', started_at, now()::TIMESTAMP) AS age_s"""
_PROCESSES = f"""
{_newest("($node IS NULL OR node = $node)")},
rows_of AS (SELECT {_OF_PROCESS} FROM newest WHERE $job IS NULL OR job = $job)"""
_JOBS = f"""
{_newest("true")},
working AS (
    SELECT DISTINCT job, username, coalesce(g.parent_gpu_uuid, p.gpu_uuid) AS gpu_uuid
    FROM newest p LEFT JOIN gpus g USING (gpu_uuid) WHERE job IS NOT NULL
),
findings AS (
    SELECT job, mode(bottleneck) AS finding FROM diagnoses
    WHERE ended_at IS NULL AND kind = 'gpu' AND job IS NOT NULL GROUP BY job
),
rows_of AS (
    SELECT w.job, any_value(w.username) AS username, count(DISTINCT f.gpu_uuid) AS gpus,
        count(DISTINCT f.node) AS nodes, avg(f.util_percent) AS util_percent,
        100.0 * sum(f.memory_used_bytes) / nullif(sum(f.memory_total_bytes), 0) AS memory_percent,
        sum(f.power_watts) AS power_watts, sum(f.usd_per_hour) AS usd_per_hour, sum(f.usd_wasted) AS usd_wasted,
        any_value(d.finding) AS finding, string_agg(DISTINCT f.node, ' ' ORDER BY f.node) AS "where"
    FROM working w JOIN fleet f USING (gpu_uuid)
    LEFT JOIN findings d ON d.job = w.job
    WHERE $node IS NULL AND $job IS NULL
    GROUP BY w.job
)"""
_ALERT_ROWS = f"""
rows_of AS (
    SELECT fingerprint AS alert, severity, rule, {PLACE_SQL} AS place, node, gpu_uuid, owner, summary,
        date_diff('second', began_at, now()::TIMESTAMP) AS age_s, usd_so_far AS usd, consequence,
        {{worst}} AS worst
    FROM alerts_now
    WHERE state = 'firing' AND ($node IS NULL OR node = $node) AND $job IS NULL
)"""
_WORST = f"row_number() OVER (ORDER BY {WORST_FIRST}, usd_so_far DESC NULLS LAST, fired_at)"

_ROWS: Mapping[TopView, tuple[str, str, str]] = {
    TopView.NODES: (_NODES, "concat_ws(' ', node, model, labels)", "coalesce(level = 3 OR state = 'silent', false) DESC, node"),
    TopView.GPUS: (_GPUS, "concat_ws(' ', place, model, gpu_uuid, username, job, process)", "node, gpu, gpu_uuid"),
    TopView.PROCESSES: (_PROCESSES, "concat_ws(' ', place, username, job, command, pid)", "node, gpu, pid"),
    TopView.JOBS: (_JOBS, "concat_ws(' ', job, username, \"where\")", "gpus DESC, job"),
    TopView.ALERTS: (
        _ALERT_ROWS.format(worst=_WORST), "concat_ws(' ', rule, place, owner, summary, severity)", "worst"
    ),
}  # fmt: skip
"""By view: CTEs that end with `rows_of`, the text that is searched, and the default order."""
_BIN = """least($bins - 1, floor($bins * (1 - date_diff('millisecond', ts, now()::TIMESTAMP) / ($span_s * 1000.0))))
        ::INTEGER"""
"""Step of a sample: the newest is $bins - 1."""
_IN_SPAN = "ts > now()::TIMESTAMP - to_seconds($span_s)"
_GPU_VALUES = {
    "util_percent": "avg(util_percent)", "power_watts": "avg(power_watts)", "sm_clock_mhz": "avg(sm_clock_mhz)",
    "temperature_celsius": "max(temperature_celsius)",
    "memory_percent": "avg(100.0 * memory_used_bytes / nullif(memory_total_bytes, 0))",
}  # fmt: skip
"""SQL of a step of each metric."""
_GPU_NOW = f"""
WITH {_FLEET}
SELECT
    (SELECT to_json(t)::VARCHAR FROM totals t) AS totals,
    (SELECT to_json(f)::VARCHAR FROM fleet f WHERE gpu_uuid = $gpu) AS gpu,
    (SELECT to_json(coalesce(list(a ORDER BY a.worst), []))::VARCHAR FROM (
        SELECT severity, rule, summary, usd_so_far AS usd, {_WORST} AS worst,
            date_diff('second', began_at, now()::TIMESTAMP) AS age_s
        FROM alerts_now WHERE state = 'firing' AND (gpu_uuid = $gpu
            OR (gpu_uuid IS NULL AND node = (SELECT node FROM gpus WHERE gpu_uuid = $gpu)))
    ) a) AS alerts
"""
_GPU_PAST = f"""
WITH {_newest("(gpu_uuid = $gpu OR gpu_uuid IN (SELECT gpu_uuid FROM gpus WHERE parent_gpu_uuid = $gpu))")},
bins AS (
    SELECT {_BIN} AS bin,
        {", ".join(f"{sql} AS {name}" for name, sql in _GPU_VALUES.items())}
    FROM gpu_samples
    WHERE gpu_uuid = $gpu AND {_IN_SPAN}
    GROUP BY bin
)
SELECT
    (SELECT to_json(coalesce(list(b), []))::VARCHAR FROM bins b) AS bins,
    (SELECT to_json(coalesce(list(p ORDER BY p.memory_bytes DESC NULLS LAST, p.pid), []))::VARCHAR
        FROM (SELECT {_OF_PROCESS} FROM newest) p) AS processes,
    (SELECT to_json(coalesce(arg_max({{'username': username, 'job': job}}, coalesce(gpu_memory_bytes, 0)),
        {{'username': NULL, 'job': NULL}}))::VARCHAR FROM newest) AS holder
"""

_NODE_NOW = f"""
WITH {_FLEET}
SELECT (SELECT to_json(t)::VARCHAR FROM totals t) AS totals,
    (SELECT to_json(coalesce(list(f ORDER BY f.gpu, f.gpu_uuid), []))::VARCHAR
        FROM fleet f WHERE node = $node) AS gpus
"""


def _rate_sql(*names: str) -> str:
    """The sum of the rates of counters since the sample before; NULL where none is known."""
    parts = [
        f"CASE WHEN {name} >= lag({name}) OVER earlier THEN ({name} - lag({name}) OVER earlier) / seconds END"
        for name in names
    ]
    return f"list_sum([{', '.join(parts)}])"


_NODE_HOST = f"""
WITH stepped AS (
    SELECT {_BIN} AS bin, cpu_util_percent AS cpu_percent,
        100.0 * memory_used_bytes / nullif(memory_total_bytes, 0) AS memory_percent,
        {_rate_sql("disk_read_bytes_total", "disk_write_bytes_total")} AS disk_bytes_per_s,
        {_rate_sql("network_rx_bytes_total", "network_tx_bytes_total")} AS network_bytes_per_s,
        greatest(psi_cpu_some_percent, psi_io_some_percent, psi_memory_some_percent) AS pressure_percent
    FROM (
        SELECT *, nullif(date_diff('millisecond', lag(ts) OVER (ORDER BY ts), ts), 0) / 1000.0 AS seconds
        FROM host_samples WHERE node = $node AND {_IN_SPAN}
    )
    WINDOW earlier AS (ORDER BY ts)
)
SELECT bin, {", ".join(f"avg({name}) AS {name}" for name in HOST_METRICS)}
FROM stepped GROUP BY bin
"""
_TREE_PROCESSES = f"""
SELECT {_OF_PROCESS}, {", ".join(PARTS)} FROM newest
WHERE ($job IS NULL OR job = $job) AND ($text = ''
    OR contains(lower(concat_ws(' ', node || '/' || coalesce(gpu::VARCHAR, gpu_uuid), username, job, command, pid)), $text))
"""
_NODE_PROCESSES = f"""
WITH {_newest("node = $node")}
SELECT {_OF_PROCESS} FROM newest ORDER BY memory_bytes DESC NULLS LAST, gpu_uuid, pid
"""


def _node_gpus_sql(metric: str) -> str:
    """The history of a metric of each GPU of a node."""
    return f"""
WITH stepped AS (
    SELECT gpu_uuid, {_BIN} AS bin, {_GPU_VALUES[metric]} AS value
    FROM gpu_samples WHERE node = $node AND {_IN_SPAN} GROUP BY ALL
)
SELECT gpu_uuid, to_json(list(bin))::VARCHAR AS bins, to_json(list(value))::VARCHAR AS readings
FROM stepped WHERE value IS NOT NULL GROUP BY gpu_uuid
"""


_TOTALS = f"WITH {_FLEET} SELECT to_json(t)::VARCHAR AS totals FROM totals t"


def rows_sql(request: RowsRequest) -> str:
    """The query of a page of rows, with the totals in each row; parameters: $node, $job, $text, $limit, $offset.

    Processes have no totals.
    """
    if request.is_tree:
        return _tree_rows_sql(request)
    made, names, order = _ROWS[request.view]
    has_totals = request.view is not TopView.PROCESSES
    totals = "(SELECT to_json(t)::VARCHAR FROM totals t)" if has_totals else "NULL"
    if request.sort:
        # The name is one of our columns, not user input.
        order = f'"{request.sort}" {"DESC" if request.is_descending else "ASC"} NULLS LAST, {order}'
    elif request.is_descending:
        first, comma, rest = order.removesuffix(" DESC").partition(",")
        order = (
            f"{first.removesuffix(' DESC')} {'ASC' if ' DESC' in first else 'DESC'}{comma}{rest}"
        )
    return f"""
WITH {f"{_FLEET}," if has_totals else ""}
{made},
chosen AS (SELECT * FROM rows_of WHERE $text = '' OR contains(lower({names}), $text)),
page AS (
    SELECT *, row_number() OVER (ORDER BY {order}) AS line_ FROM chosen
    ORDER BY {order} LIMIT $limit::BIGINT OFFSET $offset::BIGINT
)
SELECT {totals} AS totals_, (SELECT count(*) FROM chosen) AS count_, page.*
FROM (SELECT 1) LEFT JOIN page ON true ORDER BY line_
"""


def _tree_rows_sql(request: RowsRequest) -> str:
    return f"""
WITH {_newest("($node IS NULL OR node = $node)")},
{tree_sql(_TREE_PROCESSES, request)},
page AS (SELECT * FROM tree ORDER BY line_ LIMIT $limit::BIGINT OFFSET $offset::BIGINT)
SELECT NULL AS totals_, (SELECT count(*) FROM tree) AS count_, page.*
FROM (SELECT 1) LEFT JOIN page ON true ORDER BY line_
"""


_Series = Mapping[str, Sequence[float | None]]
_GpuPast = tuple[_Series, Sequence[Row], Row]
_NodePast = tuple[_Series, _Series, Sequence[Row]]


async def _known() -> str | None:
    return None


class CollectorSource:
    """A collector as a source; tests pass `querier` and `unjudged`."""

    def __init__(
        self,
        url: str | None,
        querier: Querier | None = None,
        unjudged: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """Raises CallError for a wrong address or token."""
        self._endpoint = CollectorEndpoint.of(url)
        # A thread that is not joined when the user quits.
        worker = Worker("collector")
        self._querier = querier or RemoteQuerier(url, worker.submit)
        self._unjudged = unjudged or (
            _known if querier else partial(worker.submit, unjudged_at, url)
        )
        self._judged: tuple[str | None, float] = (None, 0.0)
        """The last answer of `/v1/judgement`, and until when it is valid."""
        self._clock = SystemClock()
        self._of_gpu: tuple[GpuRequest, float, _GpuPast] | None = None
        """History of the GPU that is shown, and until when it is valid."""
        self._of_node: tuple[NodeRequest, float, _NodePast] | None = None

    @property
    def name(self) -> str:
        return self._endpoint.url

    @property
    def node(self) -> str | None:
        """None: it is of many nodes."""
        return None

    async def run(self) -> None:
        """Wait; this source has no background work."""

    async def ask(self, request: Request) -> Answer:
        """Answer a request. Raises SourceError."""
        try:
            match request:
                case RowsRequest():
                    return await self._rows(request)
                case GpuRequest():
                    return await self._gpu(request)
                case NodeRequest():
                    return await self._node(request)
                case WhyRequest():
                    return WhyAnswer(await self._why(request.name))
        except (QueryError, RefusedError) as error:
            raise SourceError(str(error), is_refusal=True) from error
        except CallError as error:
            raise SourceError(str(error)) from error

    async def _rows(self, request: RowsRequest) -> RowsAnswer:
        params = {
            "node": request.node, "job": request.job, "text": request.text.lower(),
            "limit": request.limit, "offset": request.offset,
        }  # fmt: skip
        if request.is_tree:
            params["toggled"] = json.dumps(sorted(request.toggled))
        found = await self._querier.query(rows_sql(request), params, timeout_s=TIMEOUT_S)
        records = found.records()
        rows: list[Row] = [
            {name: value for name, value in record.items() if name not in ("totals_", "count_")}
            for record in records
            if record["line_"] is not None
        ]
        totals = records[0]["totals_"]
        if totals is None:
            totals = (await self._querier.query(_TOTALS, timeout_s=TIMEOUT_S)).rows[0][0]
        return RowsAnswer(await self._totals(totals), rows, records[0]["count_"])

    async def _totals(self, text: str) -> Row:
        """Totals, with the reason if the rules have not judged the fleet."""
        now_s = self._clock.monotonic()
        if now_s >= self._judged[1]:
            self._judged = await self._unjudged(), now_s + JUDGED_S
        return {**json.loads(text), "unjudged": self._judged[0]}

    async def _gpu(self, request: GpuRequest) -> GpuAnswer:
        now = await self._querier.query(_GPU_NOW, {"gpu": request.gpu_uuid}, timeout_s=TIMEOUT_S)
        (record,) = now.records()
        totals = await self._totals(record["totals"])
        if record["gpu"] is None:
            return GpuAnswer(totals, None)
        series, processes, holder = await self._past(request)
        row = {**json.loads(record["gpu"]), **holder}
        return GpuAnswer(totals, row, series, processes, json.loads(record["alerts"]))

    async def _past(self, request: GpuRequest) -> _GpuPast:
        """History, processes and holder of a GPU; read again when they are old."""
        now_s = self._clock.monotonic()
        if self._of_gpu is not None and self._of_gpu[0] == request and now_s < self._of_gpu[1]:
            return self._of_gpu[2]
        params = {"gpu": request.gpu_uuid, "bins": request.bins, "span_s": request.span_s}
        (record,) = (await self._querier.query(_GPU_PAST, params, timeout_s=TIMEOUT_S)).records()
        series = _series_of(json.loads(record["bins"]), GPU_METRICS, request.bins)
        past = (series, json.loads(record["processes"]), json.loads(record["holder"] or "{}"))
        self._of_gpu = (request, now_s + _valid_s(request), past)
        return past

    async def _node(self, request: NodeRequest) -> NodeAnswer:
        now = await self._querier.query(_NODE_NOW, {"node": request.node}, timeout_s=TIMEOUT_S)
        (record,) = now.records()
        host, series, processes = await self._node_past(request)
        totals = await self._totals(record["totals"])
        return NodeAnswer(totals, json.loads(record["gpus"]), host, series, processes)

    async def _node_past(self, request: NodeRequest) -> _NodePast:
        """History of a host and its GPUs, and its processes; read again when they are old."""
        now_s = self._clock.monotonic()
        if self._of_node is not None and self._of_node[0] == request and now_s < self._of_node[1]:
            return self._of_node[2]
        node = {"node": request.node}
        params = {**node, "bins": request.bins, "span_s": request.span_s}
        asked = ((_NODE_HOST, params), (_node_gpus_sql(request.metric), params), (_NODE_PROCESSES, node))  # fmt: skip
        host, gpus, processes = [
            await self._querier.query(sql, those, timeout_s=TIMEOUT_S) for sql, those in asked
        ]
        series = {}
        for record in gpus.records():
            values: list[float | None] = [None] * request.bins
            for at, value in zip(json.loads(record["bins"]), json.loads(record["readings"]), strict=True):  # fmt: skip
                if 0 <= at < request.bins:
                    values[at] = value
            series[record["gpu_uuid"]] = values
        past = (_series_of(host.records(), HOST_METRICS, request.bins), series, processes.records())
        self._of_node = (request, now_s + _valid_s(request), past)
        return past

    async def _why(self, name: str) -> list[str]:
        from gpuwarden_cli.read.diagnosis import diagnose

        try:
            found = await diagnose(self._querier, name, self._clock.now())
        except QueryError:
            raise
        except ValueError as error:
            return [str(error)]
        lines: list[str] = []
        for record in found.records():
            lines += [*_why_lines(record), ""]
        return lines[:-1]


def _series_of(
    records: Sequence[Mapping[str, Any]], metrics: Sequence[str], bins: int
) -> dict[str, list[float | None]]:
    """Values by metric of records with a `bin`."""
    series: dict[str, list[float | None]] = {name: [None] * bins for name in metrics}
    for record in records:
        if 0 <= record["bin"] < bins:
            for name in metrics:
                series[name][record["bin"]] = record[name]
    return series


def _valid_s(request: GpuRequest | NodeRequest) -> float:
    """For how long a history is shown before it is read again: for a step of its graphs."""
    return max(PAST_S, request.span_s / request.bins)


def _why_lines(record: Mapping[str, Any]) -> list[str]:
    """Lines of one diagnosis."""
    of = record.get("job") if record.get("kind") == "job" else None
    place = of or f"{record.get('node')}/{record.get('gpu')}"
    verdict = str(record.get("bottleneck") or record.get("verdict")).upper()
    sure = f", {100 * record['confidence']:.0f} % sure" if record.get("confidence") else ""
    lines = [f"{place}: {verdict}{sure}", f"  {record['summary']}"]
    if record.get("usd_per_hour"):
        lines.append(f"  It costs ${record['usd_per_hour']:.2f} an hour.")
    lines += [f"    {one['text']}" for one in record.get("evidence") or ()]
    if record.get("advice"):
        lines.append(f"  What to do: {record['advice']}")
    return lines
