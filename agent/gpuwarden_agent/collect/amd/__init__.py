"""Reads AMD GPUs from the amdgpu driver's files in /sys, and by AMD's library where it is
installed.
"""
