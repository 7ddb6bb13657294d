"""The commands: flags and output of each; what they run is elsewhere."""
