"""Shows a fleet, or this host, live in a terminal: `gpuwarden top`.

`model` is a pure function of state, event and time; `screen` makes the lines of a state. `collector` and `local` are
sources of rows. `app` (Textual, the extra `top`) and `plain` (any terminal, or a pipe) run them. A source is asked
only for the totals and the rows on the screen.
"""
