"""The agent: probes of a GPU host, sampler, spool and shipper."""
