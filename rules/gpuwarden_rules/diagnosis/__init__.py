"""Finds the bottleneck of every GPU and job from measurements of a window, with evidence and advice.

`observe` reads the measurements, `procedure` defines the classes as data, `classify` applies them to one GPU,
`jobs` compares the ranks of a job, `episodes` keeps verdicts over time, `service` runs all of it.
"""
