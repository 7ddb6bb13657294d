"""Serves the agent's newest samples as Prometheus text, under three sets of names."""
