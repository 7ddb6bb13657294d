"""Tells people what is wrong: what to tell whom and when (`planner.py`), the messages that wait
(`outbox.py`), how they read (`words.py`), and where they go (`receiver.py` and its kinds)."""
