"""The queries of the comparison, by feature."""

from collections.abc import Iterator, Mapping

P, U, E, M, H = (
    "gpuwarden_gpu_power_watts",
    "gpuwarden_gpu_util_ratio",
    "gpuwarden_gpu_energy_joules_total",
    "gpuwarden_gpu_memory_used_bytes",
    "gpuwarden_host_load_1m",
)
D, W = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE"
GAUGES = (P, U, M, H, D)
_GROUPS = (
    "",
    " by (node)",
    " without (gpu, gpu_uuid)",
    " by (node, model)",
    " by (absent)",
    " without ()",
)


def queries() -> Mapping[str, list[str]]:
    """The queries by feature."""
    found: dict[str, list[str]] = {}
    for feature, query in _all():
        found.setdefault(feature, []).append(query)
    return found


def _all() -> Iterator[tuple[str, str]]:
    yield from _selectors()
    yield from _aggregations()
    yield from _windows()
    yield from _operators()
    yield from _functions()
    yield from _absence_and_labels()
    yield from _dashboards()


def _selectors() -> Iterator[tuple[str, str]]:
    matchers = (
        "", '{node="n0"}', '{node!="n0"}', '{node=~"n."}', '{node!~"n0|x"}', '{gpu=~"[01]"}', '{model=~".*H100"}',
        '{absent=""}', '{absent!=""}', '{node="n1",gpu="2"}', '{gpu_uuid=~"GPU-[1-3]",node=~"n0|n1"}', '{node=""}',
        '{simulated=""}',
    )  # fmt: skip
    for name in (P, U, E):
        for matcher in matchers:
            yield "selectors", f"{name}{matcher}"
    yield "selectors", '{__name__="gpuwarden_host_load_1m"}'
    yield "selectors", '{__name__=~"gpuwarden_gpu_(power_watts|util_ratio)", node="n0"}'
    yield "selectors", "gpuwarden_nothing"
    for label in ('UUID="GPU-2"', 'Hostname=~"n1"', 'modelName="NVIDIA A100"', 'device="nvidia0"'):
        yield "selectors", f"{D}{{{label}}}"
    for offset in ("1m", "90s", "-1m", "10m"):
        yield "offset", f"{P} offset {offset}"
        yield "offset", f"rate({E}[2m] offset {offset})"
    for at in ("1790000700.25", "1790000900.5", "start()", "end()"):
        yield "@", f"{P} @ {at}"
        yield "@", f"sum by (node) (rate({E}[3m] @ {at}))"
        yield "@", f"{P} - {P} @ {at}"
    yield "@", f"avg_over_time({U}[1m] @ end() offset 2m)"


def _aggregations() -> Iterator[tuple[str, str]]:
    for op in ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"):
        for name in (P, U):
            for group in _GROUPS:
                yield op, f"{op}{group} ({name})"
        yield op, f"{op} by (Hostname) ({D})"
    for op in ("topk", "bottomk"):
        for k in ("1", "2", "10", "0", "scalar(vector(2))"):
            for group in ("", " by (node)", " without (gpu, gpu_uuid)"):
                yield op, f"{op}{group} ({k}, {P} + {M} / 1e12)"
    for q in ("0", "0.25", "0.5", "0.99", "1", "-1", "2"):
        for group in ("", " by (node)"):
            yield "quantile", f"quantile{group} ({q}, {U})"
    for label in ("value", "node"):
        yield "count_values", f'count_values("{label}", {M})'
        yield "count_values", f'count_values by (node) ("{label}", {M} > 3e9)'


def _windows() -> Iterator[tuple[str, str]]:
    windows = ("20s", "1m", "97s", "5m")
    for function in ("rate", "increase", "irate", "resets", "changes"):
        for window in windows:
            yield function, f"{function}({E}[{window}])"
            yield function, f"sum by (node) ({function}({E}[{window}]))"
    for function in ("delta", "idelta", "deriv", "changes"):
        for window in windows:
            yield function, f"{function}({P}[{window}])"
            yield function, f"{function}({U}[{window}])"
    for function in ("avg", "min", "max", "sum", "count", "last", "present", "stddev", "stdvar"):
        for window in windows:
            yield f"{function}_over_time", f"{function}_over_time({U}[{window}])"
            yield f"{function}_over_time", f"avg by (node) ({function}_over_time({P}[{window}]))"
    for q in ("0", "0.5", "0.9", "1", "-0.5", "1.5"):
        for window in ("1m", "5m"):
            yield "quantile_over_time", f"quantile_over_time({q}, {U}[{window}])"
    for ahead in ("0", "60", "3600", "-60"):
        yield "predict_linear", f"predict_linear({E}[5m], {ahead})"
        yield "predict_linear", f"predict_linear({P}[1m], {ahead})"
    for outer in ("max_over_time", "avg_over_time", "count_over_time", "last_over_time", "rate"):
        for step in ("[5m:30s]", "[3m:7s]", "[5m:]", "[10m:1m] offset 1m"):
            yield "subqueries", f"{outer}(sum by (node) ({P}){step})"
            inner = f"sum by (node) ({E})" if outer == "rate" else f"rate({E}[1m])"
            yield "subqueries", f"{outer}({inner}{step})"
    yield "subqueries", f"max_over_time((time() - max(timestamp({P})))[5m:10s])"
    yield "subqueries", f"avg_over_time({P}[5m:15s] @ 1790001000.25)"


def _operators() -> Iterator[tuple[str, str]]:
    for op in ("+", "-", "*", "/", "%", "^"):
        yield "arithmetic", f"{P} {op} 2"
        yield "arithmetic", f"2 {op} {U}"
        yield "arithmetic", f"{P} {op} {U}"
        yield "arithmetic", f"7 {op} 3"
        yield "arithmetic", f"{U} {op} 0"
        yield "arithmetic", f"{P} {op} scalar(sum({H}))"
        yield "arithmetic", f"-{P} {op} {U}"
    yield "arithmetic", f"sum by (gpu_uuid) ({P} atan2 {U})"
    yield "arithmetic", f"-{P}"
    yield "arithmetic", "1 + 2 * 3 ^ 2 - 4 / 5"
    for op in ("==", "!=", ">", "<", ">=", "<="):
        yield "comparisons", f"{P} {op} 330"
        yield "comparisons", f"330 {op} {P}"
        yield "comparisons", f"{P} {op} bool 330"
        yield "comparisons", f"{U} {op} on(gpu_uuid) {U} offset 1m"
        yield "comparisons", f"{U} {op} bool {U} offset 1m"
        yield "comparisons", f"1 {op} bool 2"
        yield "comparisons", f"({U} / 0) {op} ({U} / 0)"
        yield "comparisons", f"({U} * 0 / 0) {op} bool 1"
    for matching in (
        "on(gpu_uuid)",
        "ignoring(model)",
        "on(node, gpu)",
        "ignoring(gpu_uuid, model)",
    ):
        yield "matching", f"{P} * {matching} {U}"
    yield "matching", f"{P} / on(node) group_left sum by (node) ({P})"
    yield "matching", f"{P} / ignoring(gpu, gpu_uuid, model) group_left sum by (node) ({P})"
    yield "matching", f"sum by (node) ({P}) / on(node) group_right {U}"
    yield "matching", f"{P} * on(node) group_left(absent) {H}"
    yield (
        "matching",
        f'{U} * on(gpu_uuid) group_left(model) label_replace({P}, "extra", "$1", "model", "NVIDIA (.*)")',
    )
    yield (
        "matching",
        f'{U} * on(gpu_uuid) group_left(extra) label_replace({P}, "extra", "$1", "model", "NVIDIA (.*)")',
    )
    yield "matching", f"{W} / on(UUID) {D}"
    yield "matching", f"{P} + on(node) {U}"
    for op in ("and", "or", "unless"):
        yield "sets", f"{P} {op} {U}"
        yield "sets", f'{P} {op} {P}{{node="n1"}}'
        yield "sets", f"{P} {op} on(node) {H} > 1"
        yield "sets", f"sum by (node) ({P}) {op} sum by (model) ({P})"
        yield "sets", f"{P} > 340 {op} {U} > 0.5"
        yield "sets", f"{P} {op} ignoring(gpu_uuid, gpu, model) {H}"


def _functions() -> Iterator[tuple[str, str]]:
    for name in ("abs", "ceil", "floor", "exp", "sqrt", "ln", "log2", "log10", "sgn", "deg", "rad"):
        yield name, f"{name}({U})"
        yield name, f"{name}({U} - 0.5)"
        yield name, f"{name}({U} * 0)"
    for name in (
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
    ):
        yield "trigonometry", f"{name}({U})"
        yield "trigonometry", f"{name}({U} * 4)"
    for to in ("", ", 0.1", ", 5", ", 0.5"):
        yield "round", f"round({U} * 10{to})"
    for bounds in ("0.2, 0.6", "0.6, 0.2", "-1, 1"):
        yield "clamp", f"clamp({U}, {bounds})"
    yield "clamp", f"clamp_min({U}, 0.5)"
    yield "clamp", f"clamp_max({U}, 0.5)"
    for query in (
        "time()",
        "pi()",
        "vector(1)",
        "vector(time())",
        f"scalar(sum({P}))",
        f"scalar({P})",
        "-time()",
        "scalar(vector(3)) + 1",
    ):
        yield "scalars", query
    for name in (
        "minute",
        "hour",
        "day_of_week",
        "day_of_month",
        "day_of_year",
        "days_in_month",
        "month",
        "year",
    ):
        yield "dates", f"{name}()"
        yield "dates", f"{name}(timestamp({P}))"
    yield "timestamp", f"timestamp({P})"
    yield "timestamp", f"timestamp({P} * 1)"
    yield "timestamp", f"time() - timestamp({H})"


def _absence_and_labels() -> Iterator[tuple[str, str]]:
    yield "absent", "absent(nothing)"
    yield "absent", 'absent(nothing{a="b", c=~"d", e="f"})'
    yield "absent", f'absent({P}{{gpu_uuid="GPU-1"}})'
    yield "absent", f"absent(sum({P}))"
    yield "absent", f'absent_over_time({P}{{gpu_uuid="GPU-4"}}[2m])'
    yield "absent", 'absent_over_time(nothing{x="y"}[2m])'
    yield "sort", f"sort({U})"
    yield "sort", f"sort_desc({U})"
    for pattern, replacement in (
        ("n(.*)", "$1"),
        ("n(.*)", "x-${1}-y"),
        ("(.*)", "$1$1"),
        ("nothing", "z"),
        ("n0", ""),
        (".*", "k"),
    ):
        yield "label_replace", f'label_replace({P}, "dst", "{replacement}", "node", "{pattern}")'
        yield "label_replace", f'label_replace({P}, "node", "{replacement}", "node", "{pattern}")'
    yield "label_join", f'label_join({P}, "dst", "-", "node", "gpu")'
    yield "label_join", f'label_join({P}, "node", "", "gpu_uuid")'
    yield "label_join", f'label_join({P}, "dst", "/", "absent", "node")'
    yield "label_replace", f'sum by (short) (label_replace({P}, "short", "$1", "model", ".* (.*)"))'


def _dashboards() -> Iterator[tuple[str, str]]:
    """What panels of the DCGM dashboards and of ours ask."""
    for query in (
        f'{D}{{Hostname=~"n.*",gpu=~"0|1"}}', f'avg({D}{{Hostname=~"n.*"}})', f'sum({W}{{gpu=~".*"}})',
        f"sum({W}) by (Hostname)", f"topk(3, {W})", f"avg by (gpu) ({D}) < 60", f"count({D} < 5) or vector(0)",
        f"count(count by (Hostname) ({D}))", f"sum(rate({E}[5m])) / 1000", f"sum(increase({E}[10m])) / 3.6e6",
        f"100 * avg by (node) (avg_over_time({U}[5m]))", f"max by (node) ({M}) / 2^30",
        f"({P} > 300) * on(node, gpu) group_left() ({U} < 0.3)", f"min_over_time({U}[10m]) < 0.1",
        f"quantile(0.95, max_over_time({P}[5m]))", f"avg({U}) by (node) * on(node) {H}",
    ):  # fmt: skip
        yield "dashboards", query
