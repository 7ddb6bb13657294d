"""The store: segments, state file and lake.

`database` opens it, `commit` makes a group of batches durable, `engine` shows all of it as tables to
DuckDB, here and in query processes.
"""
