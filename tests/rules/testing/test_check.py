"""Checking finds what is wrong before a rule runs, without a row of data."""

from pathlib import Path

import pytest
from tests.each import each

from gpuwarden.clock import EPOCH
from gpuwarden_rules.definition.form_sql import trials
from gpuwarden_rules.definition.language import builtin_paths, builtin_rules, parse
from gpuwarden_rules.definition.sql_text import parameters
from gpuwarden_rules.testing import MemoryDatabase, check
from gpuwarden_rules.testing.check import gaps

RULE = "  - {{name: {name}, severity: info, labels: [node], summary: s, remedy: r, sql: '{sql}'}}\n"


def written(path: Path, **sql_by_name: str) -> Path:
    path.write_text(
        "rules:\n" + "".join(RULE.format(name=n, sql=s) for n, s in sql_by_name.items())
    )
    return path


async def test_the_built_in_pack_is_good() -> None:
    assert await check(builtin_paths()) == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT node, $now AS t FROM nowhere", "Table with name nowhere does not exist"),
        ("SELECT node, $now AS t, oops FROM gpus", '"oops" not found'),
        ("SELECT node FROM gpus WHERE $now::TIMESTAMP > > 1", "Parser Error: syntax error"),
        ("SELECT gpu FROM gpus WHERE last_seen_at < $now", "label 'node' is not a column"),
        ("SELECT node, node, $now AS t FROM gpus", "column 'node' stands twice"),
    ],
)
async def test_sql_that_the_schema_does_not_know_is_found(
    tmp_path: Path, sql: str, message: str
) -> None:
    (problem,) = await check([written(tmp_path / "r.yaml", hot=sql)])
    assert message in problem.message
    assert problem.message.startswith("hot: ")
    assert (problem.path, problem.line) == (str(tmp_path / "r.yaml"), 2)


async def test_all_files_are_checked_and_all_problems_told(tmp_path: Path) -> None:
    good = "SELECT node FROM nodes WHERE last_seen_at < $now"
    one = written(tmp_path / "one.yaml", hot=good, bad="SELECT 1")
    two = written(tmp_path / "two.yaml", hot=good)
    three = written(tmp_path / "three.yaml", hot=good)
    problems = await check([one, two, three])
    assert [str(problem).split(": ", 1)[0].rsplit("/")[-1] for problem in problems] == [
        "one.yaml:3:77",
        "three.yaml:2:12",
        "two.yaml:2:12",
    ]


async def test_a_file_with_mistakes_of_every_kind_is_told_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        """
rules:
  - name: Hot
    severity: urgent
    labels: [node, value]
    for: soon
    summary: "{node} {nothing}"
    remedy: "{"
    sql: SELECT node FROM nodes WHERE last_seen_at < $now
  - {name: cold, severity: info, summary: s, remedy: r, sql: "SELECT oops FROM nodes WHERE $now IS NULL"}
  - {name: wet, severity: info, summary: s, remedy: r, sql: "SELECT labels FROM nodes WHERE $now IS NULL"}
"""
    )
    messages = [f"{problem.line}: {problem.message}" for problem in await check([path])]
    expected = [
        "3: name 'Hot' must be snake_case",
        "4: severity 'urgent' must be one of",
        "5: column 'value' is reserved",
        "6: 'soon' is not a duration",
        "7: Hot: the text uses {nothing}, which the SQL does not return",
        "8: a lone '{'",
        '10: cold: Binder Error: Referenced column "oops" not found',
        "11: wet: the SQL reads nodes.labels; put each into requires",
    ]
    assert len(messages) == len(expected)
    for message, wanted in zip(messages, expected, strict=True):
        assert message.startswith(wanted), message


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT node FROM process_samples WHERE ts < $now AND started_at < $now", ["started_at"]),
        (
            "SELECT p.node FROM process_samples p WHERE ts < $now ORDER BY p.state, username",
            ["state", "username"],
        ),
        (
            "WITH a AS (SELECT * FROM process_samples) SELECT node, max(pod) AS x FROM a WHERE ts < $now GROUP BY ALL",
            ["pod"],
        ),
        (
            "SELECT * EXCLUDE (pid) FROM (SELECT node, pid FROM process_samples WHERE ts < $now AND (pod, state) IS NOT NULL)",
            ["pod", "state"],
        ),
        (
            "SELECT node FROM process_samples WHERE ts < $now AND pid IN (SELECT pid FROM process_samples WHERE cpu_percent > 1)",
            ["cpu_percent"],
        ),
        ("SELECT node, gpu, gpu_uuid, pid, simulated FROM process_samples WHERE ts < $now", []),
    ],
)
async def test_columns_that_the_sql_reads_must_be_declared(
    tmp_path: Path, sql: str, columns: list[str]
) -> None:
    path = written(tmp_path / "r.yaml", hot=sql)
    named = ", ".join(f"process_samples.{column}" for column in columns)
    problems = await check([path])
    assert [p.message.partition(";")[0] for p in problems] == (
        [f"hot: the SQL reads {named}"] if columns else []
    )
    rule = path.read_text()
    for key in ("requires", "optional"):
        path.write_text(rule.replace("severity:", f"{key}: [{named}], severity:"))
        assert await check([path]) == []


async def test_a_built_in_rule_that_stops_declaring_a_column_is_found(tmp_path: Path) -> None:
    column = "process_samples.started_at"
    (source,) = [path for path in builtin_paths() if path.stem == "jobs"]
    path = tmp_path / source.name
    path.write_text(
        source.read_text()
        .replace(column, "gpus.uuid_of_no_rule")
        .replace(", gpus.uuid_of_no_rule", "")
        .replace("gpus.uuid_of_no_rule, ", "")
    )
    assert any(f"the SQL reads {column}" in p.message for p in await check([path]))


async def test_sql_is_bound_to_the_tables_of_the_querier_that_is_given(tmp_path: Path) -> None:
    path = written(tmp_path / "r.yaml", hot="SELECT node FROM extra WHERE $now::TIMESTAMP > t")
    database = MemoryDatabase()
    assert len(await check([path], database)) == 1
    database.execute("CREATE TABLE extra (node VARCHAR, t TIMESTAMP)")
    assert await check([path], database) == []
    database.close()


FORM = """\
rules:
  - name: hot
    severity: info
    of: gpu
    window: 3m
    measure: {{hottest: {measure}}}
    let:
      warmer: >-
        hottest +
        {let}
    when: {when}
    keep_firing_for: {keep}
    summary: "{{gpu}} {{warmer}}"
    remedy: r
"""
GOOD = {
    "measure": "max(temperature_celsius)",
    "let": "abs(hottest)",
    "when": "hottest > 9",
    "keep": "5m",
}


@pytest.mark.parametrize(
    ("key", "text", "line", "column", "message"),
    [
        ("measure", "maxx(temperature_celsius)", 6, 24, 'Did you mean "max"?'),
        ("let", "abss(hottest)", 8, 15, 'Did you mean "abs"?'),
        ("when", "hottest > 9 and ceill(hottest) > 9", 11, 27, 'Did you mean "ceil"?'),
        ("when", "hottest - node > 9", 11, 11, "'-(FLOAT, VARCHAR)'"),
    ],
)
async def test_what_duckdb_refuses_is_placed_at_the_expression_of_the_form(
    tmp_path: Path, key: str, text: str, line: int, column: int, message: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(FORM.format(**GOOD | {key: text}))
    (problem,) = await check([path])
    assert message in problem.message
    assert len(problem.message) < 200
    assert (problem.line, problem.column) == (line, column)


@each("rule", [rule for rule in builtin_rules() if rule.form])
def test_every_expression_of_a_built_in_form_can_be_tried_by_itself(rule, database) -> None:
    for expression, sql in trials(rule.form):
        names = {parameter.name for parameter in parameters(sql)}
        values = {**rule.params, "now": EPOCH}
        database.run(sql, {name: values[name] for name in names})
        assert expression in rule.marks or expression == "true" or "coverage_percent" in expression


def test_a_threshold_that_begins_and_ends_an_alert_is_noted() -> None:
    (rule,) = parse(FORM.format(**GOOD), "r.yaml")
    assert gaps([rule]) == []
    (rule,) = parse(FORM.format(**GOOD | {"keep": "0s"}), "r.yaml")
    (gap,) = gaps([rule])
    assert (gap.line, "give `until` or `keep_firing_for`" in gap.message) == (11, True)
    assert gaps(builtin_rules()) == []
