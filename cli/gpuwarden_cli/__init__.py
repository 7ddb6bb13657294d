"""Provides the `gpuwarden` command, which composes the parts and imports each only when a command needs it."""
