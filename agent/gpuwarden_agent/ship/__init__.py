"""Sends batches to collectors, and chooses the collector."""
