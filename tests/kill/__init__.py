"""kill -9 at each named point of a tool call, by effect class, against a real Postgres.

A worker is a child process that runs the real path of a doorbell (`harness_worker.advance.answer`).
It dies at the point it is told to. A file that only tools append to counts what really happened.
"""
