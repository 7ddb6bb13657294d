"""Observes the collector itself: metrics, health, disk, doctor, the control socket."""
