"""Sends notifications: the port `Receiver` and one module for each kind of it."""
