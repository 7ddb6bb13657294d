"""Reads what pages show, through the query port."""
