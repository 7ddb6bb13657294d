"""Takes what jobs report of their progress: tokens, steps and other numbers, from files and datagrams."""
