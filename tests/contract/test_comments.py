"""Every column of every table and view has a comment."""

import duckdb
import pytest

from gpuwarden.comments import column_comments, table_comments
from gpuwarden.schema import TABLES, create_sql, public_views, views_sql


@pytest.fixture(scope="module")
def columns():
    """Names of the columns that DuckDB gives each view."""
    with duckdb.connect() as db:
        for table in TABLES.values():
            db.execute(create_sql(table))
        db.execute(views_sql())
        return {
            view.name: [row[0] for row in db.execute(f"DESCRIBE {view.name}").fetchall()]
            for view in public_views()
        }


def test_every_column_of_a_view_has_a_comment(columns) -> None:
    comments = column_comments()
    lacking = {
        view: [name for name in names if not comments[view].get(name, "").endswith(".")]
        for view, names in columns.items()
    }
    assert {view: names for view, names in lacking.items() if names} == {}


def test_a_view_describes_no_column_that_it_lacks(columns) -> None:
    extra = {view.name: set(view.columns) - {*columns[view.name]} for view in public_views()}
    assert {view: names for view, names in extra.items() if names} == {}


def test_a_column_of_a_view_is_described_by_the_view_else_by_what_it_reads() -> None:
    comments, views = column_comments(), {view.name: view for view in public_views()}
    assert views["budgets_now"].meaning.endswith("expected to cost.")
    assert comments["gpu_usage"]["co2_kg"] == comments["waste_1h"]["co2_kg"]
    assert comments["gpus_now"]["power_watts"] == comments["gpu_samples"]["power_watts"]
    assert comments["gpus_now"]["username"].startswith("Who holds the GPU")
    assert comments["policy_results"]["usd_a_week_before"].endswith(
        "no price, or less than a day is known."
    ), "from two lines"
    assert table_comments()["racks"] == "Racks with the readings of the last minute."
