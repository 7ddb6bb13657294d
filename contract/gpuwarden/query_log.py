"""Defines the query log of a collector, for its operator."""

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

SQL_CHARACTERS_MAX = 4_000
"""Longer texts are truncated in the log."""

# fmt: off
QUERY_LOG = Table("query_log", "query of a person or program over HTTP; scope read sees those of its own token", ("collector", "ts", "number"), (
    Column("ts", Type.TIMESTAMP, "When it arrived, UTC.", required=True),
    Column("collector", Type.STRING, "Identity of the collector's store.", required=True),
    Column("number", Type.INT64, "Counts queries since the collector began.", required=True),
    Column("username", Type.STRING, "Comment or id of the token; NULL: none was sent."),
    Column("token", Type.STRING, "Id of the token, after rotation that of the first one; NULL: none was sent."),
    Column("address", Type.STRING, "Address of the client."),
    Column("sql", Type.STRING, f"Its text, truncated at {SQL_CHARACTERS_MAX} characters; values of parameters are not kept.", required=True),
    Column("form", Type.STRING, "json, ndjson, csv, arrow, parquet, or that of a client of PostgreSQL.", required=True),
    Column(
        "outcome",
        Type.STRING,
        "ok; truncated: there were more rows; wrong; timeout; refused: the queue was full; left: the "
        "client did not read all rows.",
        required=True,
    ),
    Column("error", Type.STRING, "Error that was sent instead of rows, or after the first ones."),
    Column("wait_seconds", Type.FLOAT64, "Time in the queue."),
    Column("duration_seconds", Type.FLOAT64, "From its arrival until its rows were sent to the client.", required=True),
    Column("rows", Type.INT64, "Rows of the answer; NULL: the answer was not completed."),
    Column("bytes", Type.INT64, "Bytes that were sent."),
    Column("memory_bytes", Type.INT64, "Peak memory of its process; NULL: below the peak of an earlier query in the same process."),
))
# fmt: on
