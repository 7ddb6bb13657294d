"""Reads devices, host, processes and schedulers, one folder a source; `discovery.py` finds what is
here.
"""
