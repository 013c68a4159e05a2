"""Cages for tools. `service` is what the worker sees, `jailer` the process that makes cages,
`inside` what runs in one. The last two and what they import use the standard library alone.
"""
