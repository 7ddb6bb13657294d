"""Sends notifications of incidents: decides what, to whom and when (`planner.py`, `routing.py`), stores messages
(`outbox.py`), renders them (`sentences.py`, `json_body.py`), and delivers them (`receivers/`)."""
