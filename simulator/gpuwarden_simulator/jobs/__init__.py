"""Jobs of simulated nodes: kinds of workload, and which GPUs they hold when."""
