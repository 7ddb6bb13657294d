"""Every column of every table and view has a comment."""

import duckdb

from gpuwarden.comments import column_comments
from gpuwarden.schema import TABLES, create_sql, public_views, views_sql


def test_every_column_of_a_view_has_a_comment_and_no_other_is_described() -> None:
    comments = column_comments()
    with duckdb.connect() as db:
        for table in TABLES.values():
            db.execute(create_sql(table))
        db.execute(views_sql())
        for view in public_views():
            names = [row[0] for row in db.execute(f"DESCRIBE {view.name}").fetchall()]
            told = comments[view.name]
            assert [name for name in names if not told.get(name, "").endswith(".")] == [], view.name
            assert set(view.columns) <= {*names}, view.name
    assert comments["gpu_usage"]["co2_kg"] == comments["waste_1h"]["co2_kg"]
    assert comments["gpus_now"]["power_watts"] == comments["gpu_samples"]["power_watts"]
