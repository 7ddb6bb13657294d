"""Shows a fleet, or this host, live in a terminal: `gpuwarden top`.

`model` is one pure function of state, input and time; `screen` one of state alone, which makes the lines.
`collector` and `local` are the sources of rows; `app` (Textual, of the extra `top`) and `plain` (any terminal,
or a pipe) are the shells around it. A source is asked for the rows on screen and the totals, no more.
"""
