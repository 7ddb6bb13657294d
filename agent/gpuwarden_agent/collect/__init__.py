"""What the agent reads, one folder for each kind of source; `discovery.py` finds what is on this host."""
