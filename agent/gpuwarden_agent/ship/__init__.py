"""Shipping: requests to collectors, and which of several is used."""
