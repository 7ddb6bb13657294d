"""Moore Threads GPUs, by `mthreads-gmi`."""
