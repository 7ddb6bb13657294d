"""Reads CPU, memory, disks, network and InfiniBand of the host from /proc and /sys."""
