"""Conditions in PromQL: promtool and our own PromQL find the alerts that the SQL finds, in the pack's own cases."""

import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from tests.each import each
from tests.rules.promql_cases import PromqlCase, alerts_of, promql_cases, sample_rows, unit_test

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import to_ms
from gpuwarden.prometheus_names import DCGM_SETS
from gpuwarden_cli.main import main
from gpuwarden_prometheus.compile import QueryTimes, compiled
from gpuwarden_prometheus.relations import Grid
from gpuwarden_rules.definition.language import builtin_rules, parse, parse_leniently
from gpuwarden_rules.prometheus_file import alerting_rules, rule_file
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_rules.testing.cases import START
from gpuwarden_rules.testing.runner import alerts_in

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not on the PATH"
)
LOOKBACK_MS = 300_000


def test_each_built_in_rule_has_a_condition_in_promql_or_a_reason() -> None:
    assert not [rule.name for rule in builtin_rules() if rule.promql is None]


RULES = """
rules:
  - name: gpu_hot
    severity: warning
    labels: [node, gpu]
    for: 90s
    keep_firing_for: 2h
    params: {above: 85.5, window: 10m}
    summary: "{node}: {value:.1f} °C, {value:degree|degrees}, for {window:duration}"
    remedy: Look at {node} {{now}}.
    promql:
      let: {heat: "max by ($labels) (max_over_time(gpuwarden_gpu_temperature_celsius[$window:30s]))"}
      expr: $heat > $above * $window / $window
      keeps: max by ($labels) (gpuwarden_gpu_temperature_celsius offset $window) > 0
    sql: SELECT node, gpu, temperature_celsius AS value, $above, $window FROM gpu_samples WHERE ts <= $now
"""


def test_names_of_an_expression_are_labels_parameters_and_expressions() -> None:
    (one,) = alerting_rules(parse(RULES, "hot.yaml"))
    heat = "(max by (node, gpu) (max_over_time(gpuwarden_gpu_temperature_celsius[10m:30s])))"
    assert one.expr == f"{heat} > 85.5 * 600 / 600"
    assert one.keeps == "max by (node, gpu) (gpuwarden_gpu_temperature_celsius offset 10m) > 0"
    assert one.whole.endswith('and on (node, gpu) ALERTS{alertname="gpu_hot", alertstate="firing"}')


@promtool
def test_promtool_renders_the_sentence_of_an_alert(tmp_path: Path) -> None:
    rules, tests = tmp_path / "rules.yml", tmp_path / "test.yml"
    text = rule_file(alerting_rules(parse(RULES, "hot.yaml")), "https://gpuwarden.example.com/")
    rules.write_text(text)
    (group,) = yaml.safe_load(text)["groups"]
    assert group["name"] == "gpuwarden_hot_15s"
    assert (group["rules"][0]["for"], group["rules"][0]["keep_firing_for"]) == ("90s", "2h")
    expected = {
        "summary": "n1: 91.0 °C, 91 degrees, for 10 min",
        "remedy": "Look at n1 {now}.",
        "runbook_url": "https://gpuwarden.example.com/rules/gpu_hot",
    }
    labels = {"node": "n1", "gpu": "0", "severity": "warning", "consequence": "slow_work"}
    series = 'gpuwarden_gpu_temperature_celsius{node="n1", gpu="0", instance="n1:9750"}'
    case = {
        "interval": "30s",
        "input_series": [{"series": series, "values": "91+0x9"}],
        "alert_rule_test": [
            {
                "eval_time": "4m",
                "alertname": "gpu_hot",
                "exp_alerts": [{"exp_labels": labels, "exp_annotations": expected}],
            }
        ],
    }
    tests.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [case]}))
    ran = subprocess.run(
        ["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@promtool
def test_promtool_accepts_the_files_of_all_names(tmp_path: Path) -> None:
    paths = []
    for name_set in ("own", *DCGM_SETS):
        paths.append(tmp_path / f"{name_set}.yml")
        paths[-1].write_text(rule_file(alerting_rules(builtin_rules(), name_set), "http://x"))
    ran = subprocess.run(
        ["promtool", "check", "rules", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@each(
    "written, said",
    [
        ("promql: {expr: x, reason: y}", "give either `expr`"),
        ("promql: {keeps: x}", "give either `expr`"),
        ("promql: {expr: x > $nothing}", "$nothing has no value"),
        ("promql: {expr: $a, let: {a: x, labels: y}}", "$labels has a value already"),
        ("promql: {expr: x, summary: 'at {temperature}'}", "the summary uses {temperature}"),
        ("promql: {expr: x, expression: y}", "unknown key"),
    ],
)
def test_a_mistake_of_a_condition_is_reported(written: str, said: str) -> None:
    text = (
        RULES[: RULES.index("    promql:")] + f"    {written}\n" + RULES[RULES.index("    sql:") :]
    )
    _, problems = parse_leniently(text, "hot.yaml")
    assert [said in problem.message for problem in problems] == [True]


def test_the_command_writes_a_file_and_names_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, own = tmp_path / "rules.yml", tmp_path / "hot.yaml"
    own.write_text(RULES)
    assert main(["rules", "export-prometheus", str(file), "--rule", str(own)]) == 0
    assert yaml.safe_load(file.read_text())["groups"][0]["rules"][0]["alert"] == "gpu_hot"
    assert capsys.readouterr().err == "1 rule written\n"
    assert main(["rules", "export-prometheus", "-", "--names", "dcgm49"]) == 0
    said = capsys.readouterr()
    assert "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" in said.out
    assert "6 rules written\nnot in PromQL: power_limit_lowered" in said.err


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], dict[float, list[Alert]]]:
    """The alerts that the SQL makes, by the name of case and rule."""
    return {
        (one.case.name, one.rule.name): alerts_in(one.case, one.rule.name)
        for one in promql_cases("own")
    }


@pytest.mark.slow
@promtool
@pytest.mark.parametrize("name_set", ["own", *DCGM_SETS])
def test_promtool_finds_the_alerts_of_the_sql(
    name_set: str, tmp_path: Path, expected: Mapping[tuple[str, str], dict[float, list[Alert]]]
) -> None:
    wrong = {}
    for number, case in enumerate(promql_cases(name_set)):
        rules, tests = tmp_path / f"{number}.yml", tmp_path / f"{number}.test.yml"
        rules.write_text(rule_file([case.alerting]))
        found = expected[case.case.name, case.rule.name]
        tests.write_text(yaml.safe_dump(unit_test(case, rules, found), width=10**6))
        ran = subprocess.run(
            ["promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False
        )
        if (ran.returncode == 0) == (case.reason is not None):
            wrong[str(case)] = ran.stdout + ran.stderr
    assert not wrong, "\n\n".join(f"{name}\n{said}" for name, said in wrong.items())


@pytest.mark.slow
def test_our_promql_finds_the_alerts_of_the_sql(
    expected: Mapping[tuple[str, str], dict[float, list[Alert]]],
) -> None:
    wrong = {}
    for case in promql_cases("own"):
        wanted = expected[case.case.name, case.rule.name]
        said = _difference(case, wanted)
        if (said == "") == (case.reason is not None):
            wrong[str(case)] = said
    assert not wrong, "\n\n".join(f"{name}\n{said}" for name, said in wrong.items())


def _difference(case: PromqlCase, wanted: Mapping[float, list[Alert]]) -> str:
    """How the alerts of our PromQL differ from those of the SQL; empty: they do not."""
    step_ms = 30_000
    grid = Grid(to_ms(START), step_ms, int(max(wanted) * 1000) // step_ms + 1)
    times = [grid.start_ms + n * step_ms for n in range(grid.steps)]
    database = MemoryDatabase()
    try:
        for table, rows in {
            **sample_rows(case.case),
            "gpus": case.case.rows.get("gpus", []),
        }.items():
            database.insert(table, rows)
        held, kept = (
            _points(database, text, grid) for text in (case.alerting.expr, case.alerting.keeps)
        )
    finally:
        database.close()
    found = alerts_of(case, held, kept, times)
    lines = []
    for at_s, alerts in wanted.items():
        state = found[to_ms(START) + round(at_s * 1000)]
        mine = {(str(a.labels), a.state) for a in state.values()}
        theirs = {(str(a.labels), a.state) for a in alerts}
        if mine != theirs:
            lines.append(f"at {at_s:g} s: {mine} instead of {theirs}")
        elif _shows_value(case):
            lines += [
                f"at {at_s:g} s: {state[a.fingerprint].value} instead of {a.value}"
                for a in alerts
                if not _is_close(state[a.fingerprint], a)
            ]
    return "\n".join(lines)


def _shows_value(case: PromqlCase) -> bool:
    promql = case.rule.promql
    assert promql is not None
    return promql.summary is not None and "value" in [f.name for f in promql.summary.fields]


def _is_close(mine: Alert, theirs: Alert) -> bool:
    """Values of alerts that fire and whose condition both find; a pending one may have too short a window."""
    if theirs.state is not AlertState.FIRING or mine.seen_at != theirs.seen_at:
        return True
    assert mine.value is not None
    assert theirs.value is not None
    return math.isclose(mine.value, theirs.value, rel_tol=0.05)


def _points(
    database: MemoryDatabase, text: str, grid: Grid
) -> dict[int, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[int, dict[tuple[tuple[str, str], ...], float]] = {}
    if not text:
        return found
    sql = compiled(text, QueryTimes(grid, True, LOOKBACK_MS, grid.end_ms))
    for metric, values in database.run(sql).rows:
        labels = tuple(sorted(json.loads(metric).items()))
        for at_s, value in json.loads(values):
            found.setdefault(round(at_s * 1000), {})[labels] = float(value)
    return found
