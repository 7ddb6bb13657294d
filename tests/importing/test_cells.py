"""Lines of CSV become cells."""

import pytest

from gpuwarden_importing.cells import split_to


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("2026-07-14 09:00:44,579, 30 %\n", ["2026-07-14 09:00:44.579", " 30 %"]),
        ("2026-07-14T09:00:44,579+02:00,30\n", ["2026-07-14T09:00:44.579+02:00", "30"]),
        ("30, 2026-07-14T09:00:44,579123Z\n", ["30", " 2026-07-14T09:00:44.579123Z"]),
        ('30, "A, B"\n', ["30", "A, B"]),
        ("30, 5, 7\n", None),
    ],
)
def test_the_comma_of_a_time_or_of_a_quoted_text_separates_no_cells(line, cells) -> None:
    assert [c.strip() for c in split_to(2, line, ",") or ()] == [c.strip() for c in cells or ()]
