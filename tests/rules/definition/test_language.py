"""Rule files are read strictly: every mistake is named, by line and column."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.each import each

from gpuwarden.alert import Severity
from gpuwarden_rules.definition.charts import chart_problems, charts_of
from gpuwarden_rules.definition.language import (
    column_problems,
    load,
    load_all,
    parse,
)
from gpuwarden_rules.definition.yaml_positions import RuleFileError

GOOD = """\
rules:
  - name: gpu_hot
    severity: warning
    labels: [node, gpu]
    interval: 30s
    for: 5m
    keep_firing_for: 1d
    params: {above: 85, window: 10m, who: root}
    summary: "{node} GPU {gpu} is at {value:.0f} for {active}, limit {above}"
    remedy: Check fans.
    doc: docs/rules/gpu_hot.md
    sql: |
      SELECT node, gpu, 1 AS value FROM gpu_samples
      WHERE ts > $now - to_seconds($window) AND node <> $who
"""


def problems_of(text: str) -> list[str]:
    with pytest.raises(RuleFileError) as caught:
        parse(text, "r.yaml")
    return [str(problem) for problem in caught.value.problems]


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_rule_has_what_its_file_says() -> None:
    (rule,) = parse(GOOD, "r.yaml")
    assert (rule.name, rule.severity, rule.labels) == ("gpu_hot", Severity.WARNING, ("node", "gpu"))
    assert (rule.interval_s, rule.for_s, rule.keep_firing_for_s) == (30, 300, 86400)
    assert rule.params == {"above": 85, "window": 600.0, "who": "root"}
    assert (rule.path, rule.line, rule.doc) == ("r.yaml", 2, "docs/rules/gpu_hot.md")


def test_only_parameters_that_the_sql_mentions_are_bound() -> None:
    (rule,) = parse(GOOD, "r.yaml")
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert rule.bindings(now) == {"now": now, "window": 600.0, "who": "root"}


@each(
    ("old", "new", "problem"),
    [
        ("gpu_hot\n", "GpuHot\n", "r.yaml:2:11: name 'GpuHot' must be snake_case"),
        ("severity: warning", "severity: bad", "r.yaml:3:15: severity 'bad' must be one of info"),
        ("[node, gpu]", "[node, 7]", "r.yaml:4:20: must be a text, not a number"),
        ("[node, gpu]", "[node, node]", "r.yaml:4:20: label 'node' stands twice"),
        ("[node, gpu]", "[node, value]", "r.yaml:4:20: column 'value' is reserved"),
        ("[node, gpu]", "node", "r.yaml:4:13: must be a list, not a text"),
        ("interval: 30s", "interval: 30", "r.yaml:5:15: 30 is not a duration"),
        ("interval: 30s", "interval: 10ms", "r.yaml:5:15: must be between 1s and 86400s"),
        ("for: 5m", "requires: [power]", "r.yaml:6:16: 'power' is not table.column"),
        ("for: 5m", "requires: [gpus.x]", "r.yaml:6:16: table gpus has no column 'x'"),
        ("for: 5m", "caused_by: {a: [who]}", "r.yaml:6:20: 'who' is not a label"),
        ("for: 5m", "consequence: dire", "r.yaml:6:18: consequence 'dire' must be one of"),
        (
            "warning",
            "critical\n    consequence: waste",
            "r.yaml:4:18: waste cannot be critical",
        ),
        ("for: 5m", "fro: 5m", "r.yaml:6:5: unknown key 'fro'; known: name, severity"),
        ("above: 85", "above: [1]", "r.yaml:8:21: must be a text, a number or a boolean"),
        ("above: 85", "now: 85, above: 1", "r.yaml:8:14: $now is bound by the engine"),
        ("above: 85", "abvoe: 85, above: 1", "r.yaml:8:13: parameter 'abvoe' is used neither"),
        ("{value:.0f}", "{value:!}", "r.yaml:9:38: unknown format '!'"),
        ("Check fans.", "'  '", "r.yaml:10:13: remedy must not be empty"),
        ("$who", "$whom", "r.yaml:14:57: $whom has no value; known: $now, $above"),
        ("ts > $now", "ts > now()", "r.yaml:14:18: now reads the clock"),
        ("    remedy: Check fans.\n", "", "r.yaml:2:5: key 'remedy' is missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(old: str, new: str, problem: str) -> None:
    assert any(text.startswith(problem) for text in problems_of(changed(old, new))), problems_of(
        changed(old, new)
    )


def test_sql_without_now_is_refused() -> None:
    assert any("must use $now" in text for text in problems_of(changed("$now", "ts")))


def test_every_mistake_of_a_file_is_told_at_once() -> None:
    text = changed("warning", "bad").replace("5m", "soon").replace("snake", "x") + GOOD[6:]
    found = problems_of(text)
    assert [text.split(": ")[0] for text in found][:2] == ["r.yaml:3:15", "r.yaml:6:10"]


def test_a_name_stands_once_in_a_file_and_in_all_files(tmp_path: Path) -> None:
    assert problems_of(GOOD + GOOD.removeprefix("rules:\n")) == [
        "r.yaml:15:11: gpu_hot: the name is taken by r.yaml:2"
    ]
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(RuleFileError, match=r"b\.yaml:2:11: gpu_hot: the name is taken"):
        load_all([tmp_path / "a.yaml", tmp_path / "b.yaml"])


def test_a_file_that_is_not_there_or_not_text_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(RuleFileError, match="cannot be read: No such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleFileError, match="not UTF-8"):
        load(tmp_path / "bytes.yaml")


@pytest.mark.parametrize("text", ["[]", "rules: 7", "rules: [7]", "rule: []", "a", "rules: [[]]"])
def test_a_file_of_another_shape_is_refused(text: str) -> None:
    assert problems_of(text)


def test_columns_that_labels_and_texts_need_must_be_there() -> None:
    (rule,) = parse(GOOD, "r.yaml")
    assert [str(p) for p in column_problems(rule, {"node": "VARCHAR", "value": "VARCHAR"})] == [
        "r.yaml:4:20: gpu_hot: label 'gpu' is not a column of the SQL's result",
        "r.yaml:12:10: gpu_hot: column 'value' must be a number, not VARCHAR",
        (
            "r.yaml:9:26: gpu_hot: the text uses {gpu}, which the SQL does not return; "
            "known: node, value, active"
        ),
        "r.yaml:9:38: gpu_hot: {value:.0f} needs a number, the column is VARCHAR",
    ]


def test_a_chart_names_metrics_and_what_they_are_compared_with() -> None:
    (rule,) = parse(
        GOOD.replace(
            "labels:", "chart: {util_percent: value, host.x: ~, host.load_1m: lack}\n    labels:", 1
        ),
        "r.yaml",
    )
    assert [p.message for p in chart_problems(rule, {"value": "DOUBLE"})] == [
        "gpu_hot: there is no metric 'host.x' to draw; see docs/metrics.md; metrics of hosts begin with host.",
        "gpu_hot: 'lack' is neither a parameter nor a column of the SQL's result",
    ]
    shown = [(c.metric, c.name, c.threshold) for c in charts_of(rule, {"value": 91})]
    assert shown[0] == ("util_percent", "value", 91.0)
    needs = "requires: [gpus.model, gpu_1m.power_watts_avg, host_1m.cpu_util_percent_avg, gpu_1m.idle_seconds]"
    (plain,) = parse(GOOD.replace("labels:", f"{needs}\n    labels:", 1), "r.yaml")
    metrics = {c.metric: c.threshold for c in charts_of(plain, {})}
    assert metrics == {"power_watts": None, "host.cpu_util_percent": None, "util_percent": 5.0}


@each(
    ("column", "kind", "is_right"),
    [
        ("value", "DECIMAL(18,3)", True),
        ("usd_per_hour", "VARCHAR", False),
        ("began_at", "TIMESTAMP", True),
        ("began_at", "TIMESTAMP WITH TIME ZONE", False),
        ("holds", "INTEGER", False),
        ("active", "INTEGER", False),
        ("anything", "VARCHAR[]", True),
    ],
)
def test_reserved_columns_have_a_type(column: str, kind: str, is_right: bool) -> None:
    (rule,) = parse(GOOD, "r.yaml")
    columns = {"node": "VARCHAR", "gpu": "INTEGER", "value": "DOUBLE", column: kind}
    assert (column_problems(rule, columns) == []) == is_right


def test_a_page_gives_reasons_for_parameters_and_spans_alone() -> None:
    page = """
    page:
      title: A GPU is hot
      quiet: [A cool GPU.]
      sources: {above: the data sheet, for: it cools down, below: nothing}
"""
    wrong = GOOD.replace("    sql:", page.lstrip("\n") + "    sql:")
    with pytest.raises(RuleFileError, match="'below' is neither a parameter nor one of interval"):
        parse(wrong, "r.yaml")
    (rule,) = parse(wrong.replace(", below: nothing", ""), "r.yaml")
    assert rule.page is not None
    assert (rule.page.title, rule.page.quiet) == ("A GPU is hot", ("A cool GPU.",))
    assert rule.page.sources == {"above": "the data sheet", "for": "it cools down"}


@pytest.mark.parametrize("name", ["cost", "usd_per_hour", "usd_so_far"])
def test_a_text_does_not_say_what_an_alert_costs(name: str) -> None:
    (rule,) = parse(GOOD.replace("{value:.0f}", f"{{{name}}}"), "r.yaml")
    columns = {"node": "VARCHAR", "gpu": "INTEGER", "value": "DOUBLE", name: "DOUBLE"}
    (problem,) = column_problems(rule, columns)
    assert "page and message show the cost beside the text" in problem.message
