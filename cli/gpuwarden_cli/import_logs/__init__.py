"""Imports files of other tools: reads them with `gpuwarden_importing`, sends the batches, prints a summary."""
