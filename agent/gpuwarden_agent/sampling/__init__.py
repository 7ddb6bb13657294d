"""Decides when probes are read, tracks their health, and turns readings into rows."""
