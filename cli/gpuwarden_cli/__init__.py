"""The `gpuwarden` command: composes the parts, imports each only when it is asked for."""
