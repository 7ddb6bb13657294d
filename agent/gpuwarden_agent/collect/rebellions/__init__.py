"""Rebellions NPUs, by `rbln-smi`."""
