"""Forwards committed rows to other systems, from a process of its own."""
