"""Connects gpuwarden to Slurm: prolog and epilog of nodes, and summaries of jobs."""
