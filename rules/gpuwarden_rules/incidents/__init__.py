"""Joins alerts with one cause into incidents."""
