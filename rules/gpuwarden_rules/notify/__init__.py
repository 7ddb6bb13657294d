"""Notifies people of alerts: what to send to whom and when (`planner.py`, `routing.py`), the messages that
wait (`outbox.py`), their text (`sentences.py`, `json_body.py`), and where they go (`receivers/`)."""
