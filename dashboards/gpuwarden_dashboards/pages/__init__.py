"""The pages: their routes, what they are given, and the HTML of it."""
