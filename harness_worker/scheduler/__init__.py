"""The scheduler: one leader, one loop per file. Started by `python -m harness_worker.scheduler`."""
