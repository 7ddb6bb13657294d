"""The collector: ingest, store and SQL over HTTP."""
