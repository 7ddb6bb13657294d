"""The queue of unsent rows: the open batch, its encoding, and the spool on disk."""
