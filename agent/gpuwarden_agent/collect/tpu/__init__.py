"""Google TPU chips, by the metric service of libtpu and the kernel."""
