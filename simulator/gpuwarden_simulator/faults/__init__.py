"""Faults of simulated nodes: their kinds, scripts that order them, and what they change."""
