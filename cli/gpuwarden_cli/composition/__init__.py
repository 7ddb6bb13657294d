"""Composes the parts into what runs until it is told to stop: `collector`, `agent`, `up` and `simulation`.

Each page builds its objects in the order in which they need each other. `supervision` has signals, systemd's
watchdog and the reload of settings.
"""
