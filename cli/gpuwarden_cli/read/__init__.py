"""Reads a collector for several commands: its SQL as a `Querier`, diagnoses, incidents."""
