"""Makes dashboards for Grafana, and the files that provision them."""
