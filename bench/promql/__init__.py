"""Compares PromQL of the collector with a real Prometheus over the same samples."""
