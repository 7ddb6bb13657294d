"""Reads rule files: the language, texts with fields, overrides, and the rule set that folders make."""
