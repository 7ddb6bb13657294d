"""Implements `Dialect` for PostgreSQL's SQL, types and catalogue, in query processes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden_collector.query.port import (
    CatalogEngine,
    Description,
    Encoder,
    QuerySource,
    Translation,
    TypedValue,
)
from gpuwarden_postgres import catalog, encode, rewrite, types
from gpuwarden_postgres.statements import without_type_schema


class PostgresDialect:
    """PostgreSQL's `Dialect`."""

    tables = catalog.TABLES
    functions = catalog.FUNCTIONS

    def text(self, sql: str) -> str:
        return without_type_schema(sql)

    def translate(self, select: Any, source: str) -> Translation:
        listed = rewrite.listed_parameters(select)
        found = rewrite.rewrite(select, source)
        return Translation(found.is_changed, found.is_catalog, listed)

    def parameter_types(
        self, selects: Sequence[Any], columns: Mapping[str, str]
    ) -> Mapping[str, str]:
        return rewrite.parameter_types([*selects], columns)

    def sample(self, sql_type: str) -> TypedValue | str:
        if sql_type.endswith("[]"):
            return TypedValue([], sql_type)
        return TypedValue(types.SAMPLES[sql_type], sql_type) if sql_type in types.SAMPLES else ""

    def list_of(self, text: str) -> list[Any]:
        return types.text_array(text)

    def catalog_type(self, sql_type: str, *, is_parameter: bool) -> str:
        """In PostgreSQL's catalogue a UINTEGER is an oid; a parameter that is compared with it is BIGINT to DuckDB."""
        if is_parameter:
            return sql_type.replace("BIGINT", "OID")
        return "OID" + sql_type[8:] if sql_type in ("UINTEGER", "UINTEGER[]") else sql_type

    def catalog(self, engine: CatalogEngine) -> QuerySource:
        return catalog.Catalog(engine)

    def encoder(self, form: str, schema: Any, types: Sequence[str]) -> Encoder:
        return encode.encoder_of(form, schema, types)

    def described(self, description: Description) -> bytes:
        return encode.description(description)
