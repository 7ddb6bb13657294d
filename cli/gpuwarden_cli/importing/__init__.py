"""`gpuwarden import`: logs that other tools wrote, into the store.

A file goes through `sources.py` (lines), `detect.py` (which format), one reader (rows of the
catalogue's tables), `batches.py` (checked Arrow tables) and `deliver.py` (the collector's ingest).
Readers are pure: lines in, rows out; what they cannot use they tell to a `Tally`.
"""
