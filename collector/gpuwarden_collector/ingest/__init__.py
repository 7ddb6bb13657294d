"""Takes batches: decodes, admits, deduplicates and hands them to the writer as one commit (`docs/wire.md`)."""
