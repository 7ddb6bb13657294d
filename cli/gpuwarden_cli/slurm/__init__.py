"""Ties gpuwarden to Slurm: prolog and epilog of its nodes, summaries of its jobs."""
