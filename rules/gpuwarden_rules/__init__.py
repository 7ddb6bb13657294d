"""Rules: the language, the alert life cycle, the engine and the built-in packs."""
