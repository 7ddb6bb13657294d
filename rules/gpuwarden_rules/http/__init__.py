"""Serves rules, silences and explanations over HTTP."""
