"""Simulates jobs: kinds of workload, and which GPUs they hold when."""
