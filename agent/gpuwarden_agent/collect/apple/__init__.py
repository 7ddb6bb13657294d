"""The GPU of a Mac with Apple silicon, by `macmon`."""
