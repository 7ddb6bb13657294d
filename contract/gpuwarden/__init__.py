"""Defines what the parts of gpuwarden agree on: metrics, tables, wire, alerts, settings, clock, logs."""

__version__ = "0.1.0"
