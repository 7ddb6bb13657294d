"""Loads DuckDB's extensions from packages of PyPI; nothing is downloaded at run time."""

from importlib.util import find_spec
from pathlib import Path

import duckdb

from gpuwarden.query import text_sql


def extension_path(name: str) -> Path:
    """The file of an extension for this DuckDB. Raises FileNotFoundError, which says what to install."""
    spec = find_spec(f"duckdb_extension_{name}")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        path = Path(place) / f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"no extension {name} for DuckDB {duckdb.__version__}: "
        f"install duckdb-extension-{name.replace('_', '-')}=={duckdb.__version__}"
    )


def load_extension(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load an extension. Raises FileNotFoundError, duckdb.Error."""
    connection.execute(f"LOAD {text_sql(str(extension_path(name)))}")
