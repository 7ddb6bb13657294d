"""Joins alerts that have one cause into incidents."""
