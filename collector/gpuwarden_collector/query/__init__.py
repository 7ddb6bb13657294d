"""People's and rules' SQL: each query runs in a process that can be killed without harm."""
