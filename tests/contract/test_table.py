"""A table finds its columns by name."""

import pytest

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

CATS = Table("cats", "cat", ("name",), (Column("name", Type.STRING, "Name.", required=True),))


def test_a_column_is_found_by_name() -> None:
    assert CATS.column("name").required
    assert CATS.names == ("name",)
    with pytest.raises(KeyError, match="cats has no column 'colour'"):
        CATS.column("colour")
