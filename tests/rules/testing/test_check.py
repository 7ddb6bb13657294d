"""Checking finds what is wrong before a rule runs, without a row of data."""

from pathlib import Path

import pytest

from gpuwarden_rules.definition.language import builtin_paths
from gpuwarden_rules.testing import MemoryDatabase, check

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
    ]


async def test_sql_is_bound_to_the_tables_of_the_querier_that_is_given(tmp_path: Path) -> None:
    path = written(tmp_path / "r.yaml", hot="SELECT node FROM extra WHERE $now::TIMESTAMP > t")
    database = MemoryDatabase()
    assert len(await check([path], database)) == 1
    database.execute("CREATE TABLE extra (node VARCHAR, t TIMESTAMP)")
    assert await check([path], database) == []
    database.close()
