"""Makes events: of changes between samples, of Xids, and of what happens to the agent."""
