"""Evaluates rules live: state machine, engine, schedule, concurrency, statistics, muting and reload."""
