"""Extensions come from packages, or a line says which package."""

import duckdb
import pytest

from gpuwarden_collector.storage.extensions import extension_path, load_extension


def test_an_extension_is_loaded_from_its_package() -> None:
    assert "site-packages" in str(extension_path("ducklake"))
    with duckdb.connect() as connection:
        load_extension(connection, "ducklake")
        row = connection.execute(
            "SELECT loaded FROM duckdb_extensions() WHERE extension_name = 'ducklake'"
        ).fetchone()
    assert row == (True,)


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"install duckdb-extension-no-such-thing=="):
        extension_path("no_such_thing")
