"""Keeps rows: segments, state file and lake; moves, rolls up, retains and checks them.

`segment_log` makes a group of batches durable in the ingest process; `process` runs what moves rows, in a
process of its own; `engine` shows all of it as tables to DuckDB, there and in query processes.
"""
