"""Reads names, labels and owners of pods from the kubelet or the API server."""

from pathlib import Path

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the token of a pod's service account and ca.crt."""
