"""Serves HTTP: routes, bounded bodies, requests for SQL (`docs/api.md`)."""
