"""Defines what a collector keeps of the queries that people ask, for whoever runs it."""

from gpuwarden.metrics import Type
from gpuwarden.table import Column, Table

SQL_CHARACTERS_MAX = 4_000
"""Longer texts are cut in the log."""

QUERY_LOG = Table(
    "query_log",
    "query of a person or program over HTTP; scope read sees those of its own token",
    ("collector", "ts", "number"),
    (
        Column("ts", Type.TIMESTAMP, "When it came, UTC.", required=True),
        Column("collector", Type.STRING, "Identity of the collector's store.", required=True),
        Column("number", Type.INT64, "Counts queries since the collector began.", required=True),
        Column("user_name", Type.STRING, "Comment or id of the token; NULL: none was shown."),
        Column(
            "token",
            Type.STRING,
            "Id of the token, after rotation that of the first; NULL: none was shown.",
        ),
        Column("address", Type.STRING, "Address that it came from."),
        Column(
            "sql",
            Type.STRING,
            f"Its text, cut at {SQL_CHARACTERS_MAX} characters; values of parameters are not kept.",
            required=True,
        ),
        Column(
            "form",
            Type.STRING,
            "json, ndjson, csv, arrow, parquet, or that of a client of PostgreSQL.",
            required=True,
        ),
        Column(
            "outcome",
            Type.STRING,
            "ok; truncated: there were more rows; wrong; timeout; refused: no place in the queue; left: the "
            "client did not take all of it.",
            required=True,
        ),
        Column("error", Type.STRING, "What was answered instead of rows, or after the first."),
        Column("wait_seconds", Type.FLOAT64, "How long it waited for its turn."),
        Column(
            "duration_seconds",
            Type.FLOAT64,
            "From its coming until the client had its rows, or what the system buffers of them.",
            required=True,
        ),
        Column("rows", Type.INT64, "Rows of the answer; NULL: it did not come to its end."),
        Column("bytes", Type.INT64, "Bytes that were sent."),
        Column(
            "memory_bytes",
            Type.INT64,
            "Most memory of its process; NULL: less than a query before it in the same process.",
        ),
    ),
)
