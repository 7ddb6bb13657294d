"""Names the bottleneck of every GPU and job: measurements of a window, a class with its evidence, and
what to change.

`observe` reads the measurements, `procedure` holds the classes as data, `classify` applies it to one
GPU, `jobs` looks at the ranks of a job together, `episodes` keeps the verdicts over time, `service`
runs all of it.
"""
