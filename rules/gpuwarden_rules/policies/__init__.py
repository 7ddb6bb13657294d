"""Policies: what is to be done about alerts, and what that would have done to history."""
