"""Starts and confines the collector's processes, and sends messages between them."""
