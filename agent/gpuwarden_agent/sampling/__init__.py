"""When probes are read, what their health is, and how readings become rows."""
