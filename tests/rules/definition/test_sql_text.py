"""Tables and parameters of a rule's SQL are found without being fooled by strings and comments."""

from tests.each import each

from gpuwarden_rules.definition import sql_text


def test_parameters_are_found_outside_of_strings_and_comments() -> None:
    sql = """SELECT '$no', "$no", $now, $$ $no $$, -- $no
             /* $no */ $x_1 WHERE a > $now"""
    assert [p.name for p in sql_text.parameters(sql)] == ["now", "x_1", "now"]
    assert all(sql[p.offset :].startswith("$" + p.name) for p in sql_text.parameters(sql))


@each(
    ("sql", "part"),
    [
        ("SELECT now()", "reads the clock"),
        ("SELECT Current_Timestamp", "reads the clock"),
        ("SELECT today()", "reads the clock"),
        ("SELECT random()", "not repeatable"),
        ("SELECT * FROM a TABLESAMPLE 10%", "not repeatable"),
        ("SELECT * FROM a USING  Sample 10", "not repeatable"),
        ("SELECT * FROM gpus_now", "present only"),
        ("SELECT * FROM gpus, slurm_nodes", "present only"),
        ("SELECT ?", "not a named parameter"),
        ("SELECT $1", "not a named parameter"),
        ("SELECT 1; DROP TABLE gpus", "one statement"),
    ],
)
def test_sql_that_could_not_be_replayed_is_refused(sql: str, part: str) -> None:
    messages = [message for _, message in sql_text.problems(sql)]
    assert len(messages) == 1
    assert part in messages[0]


@each(
    "sql",
    [
        "SELECT $now",
        "SELECT 'now() random() ; ?'",
        "SELECT 1 -- now();",
        "SELECT now, random FROM a",
        'SELECT "current_timestamp" FROM a',
        "SELECT sample FROM a JOIN b USING (c)",
        "SELECT known, nowhere, a.nodes FROM b",
    ],
)
def test_words_that_only_look_like_it_are_let_through(sql: str) -> None:
    assert list(sql_text.problems(sql)) == []


def test_a_problem_stands_where_the_word_is() -> None:
    sql = "SELECT 1,\n  random()"
    assert [sql[offset:] for offset, _ in sql_text.problems(sql)] == ["random()"]
