"""Defines faults of simulated nodes: their kinds, scripts that order them, and their effects."""
