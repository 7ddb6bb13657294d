"""Processes that the collector starts, and messages between them."""
