"""Imports files of other tools into a collector: what the readers of `gpuwarden_importing` make, sent and summed up."""
