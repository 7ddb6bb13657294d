"""Serves the pages: their routes, and the HTML of what `read` reads."""
