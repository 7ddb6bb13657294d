"""Serves PostgreSQL's clients: its wire protocol in the collector's process, its SQL and catalogue in query processes."""
