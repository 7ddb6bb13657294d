"""FuriosaAI NPUs, by `furiosa-smi`."""
