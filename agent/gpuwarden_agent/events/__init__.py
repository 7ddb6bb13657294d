"""Events: their kinds, what follows from changes between samples, and Xids of the kernel log."""
