"""Holds the commands: each module adds its flags, runs and prints."""
