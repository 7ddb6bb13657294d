"""Reads Tenstorrent cards from files of their driver."""
