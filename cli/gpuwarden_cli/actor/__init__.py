"""Does what policies ask for: fetches acts from a collector, does each once, checks it and reports it.

It runs where the scheduler's rights are, as a user of its own; the collector has none of them. `slurm` knows Slurm's commands,
`kubernetes` the API server, `journal` what was done; `run` is the loop.
"""
