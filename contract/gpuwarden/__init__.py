"""Defines what the parts of gpuwarden agree on: metrics, tables, wire, alerts, settings, clock, life, logs.

`gpuwarden.connect()` is the Python client's, which is loaded when it is asked for: a GPU host has none of
the packages that it needs.
"""

from typing import Any

__version__ = "0.1.0"
_OF_CLIENT = ("connect", "connect_async")


def __getattr__(name: str) -> Any:
    if name in _OF_CLIENT:
        from importlib import import_module

        return getattr(import_module("gpuwarden_client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
