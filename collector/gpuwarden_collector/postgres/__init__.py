"""The collector as PostgreSQL servers speak: read only, with the tokens, guard and limits of `POST /v1/sql`."""
