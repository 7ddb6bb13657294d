"""The store: the only code that talks to DuckDB.

`database` opens it and makes cursors, `commit` writes a group of batches in one transaction,
`reading` parses and runs queries.
"""
