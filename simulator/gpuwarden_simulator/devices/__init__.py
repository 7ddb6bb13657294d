"""Simulates devices: facts of each GPU model, and what its sensors and counters read."""
