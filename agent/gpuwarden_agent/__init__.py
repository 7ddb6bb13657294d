"""Reads a GPU host, queues its samples on disk, and ships them to a collector."""
