"""Sends samples by Prometheus' remote write, and has the messages of both of its versions."""
