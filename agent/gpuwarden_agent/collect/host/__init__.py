"""The host: CPU, memory, disks, network and InfiniBand, from /proc and /sys."""
