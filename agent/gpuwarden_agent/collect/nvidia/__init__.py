"""Reads NVIDIA GPUs through NVML; `metrics.py` lists what is read."""
