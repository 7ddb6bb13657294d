"""Answers PromQL: the HTTP API of Prometheus in the collector's process, translation to SQL in query processes."""
