"""Makes the Grafana dashboards that `gpuwarden grafana export` writes: `python -m deploy.grafana`."""
