"""Reads names, labels and owners of pods from the kubelet or the API server."""
