"""Reads which GPUs Slurm or Kubernetes has allocated."""
