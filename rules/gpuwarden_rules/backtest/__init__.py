"""Replays rules over stored history, and explains an alert from it."""
