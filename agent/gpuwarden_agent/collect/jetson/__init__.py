"""The GPU of an NVIDIA Jetson up to Orin, by files of /sys: NVML reads nothing of it."""
