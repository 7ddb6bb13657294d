"""Carries Grafana's dashboards: JSON that `make dashboards` makes, and the files that provision them."""
