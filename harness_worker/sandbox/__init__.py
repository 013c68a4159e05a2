"""Cages for tools. `service` is what the worker sees; `jailer` is the process that makes cages;
`inside` is what runs in one. `jailer`, `inside` and what they import use the standard library alone.
"""
