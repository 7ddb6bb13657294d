"""AMD GPUs, from the files of the amdgpu driver in /sys, and AMD's library where it is installed."""
