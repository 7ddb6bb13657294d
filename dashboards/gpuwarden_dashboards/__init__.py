"""Dashboards: the web page."""
