"""Tests the GPUs of this host: kernels (a program of its own), what its lines mean, and how all tests are run."""
