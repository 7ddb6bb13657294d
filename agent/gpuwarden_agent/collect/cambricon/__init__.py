"""Cambricon MLU cards, by `cnmon`."""
