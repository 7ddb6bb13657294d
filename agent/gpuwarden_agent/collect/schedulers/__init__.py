"""GPUs that Slurm or Kubernetes has allocated."""
