"""Queues rows that are not sent: the open batch, its encoding, and the spool on disk."""
