"""Reads logs that other tools wrote and makes batches of rows that a collector admits.

A file goes through `sources.py` (lines), `detect.py` (which format), one reader (rows of the
catalogue's tables) and `batches.py` (checked Arrow tables). `gpuwarden import` sends the batches.
Readers are pure: lines in, rows out; they count what they cannot use in an `ImportTally`.
"""
