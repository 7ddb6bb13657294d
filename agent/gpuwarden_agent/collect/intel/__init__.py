"""Intel's Gaudi accelerators, by `hl-smi`."""
