"""Random faults against real processes: `python -m tests.chaos` (also `make chaos`).

`stack` starts the processes, some of them behind proxies that cut; `workload` submits runs and
keeps a journal of what was acknowledged; `faults` is the registry of what goes wrong; `recovery`
measures how long runs of a dead process wait; `auditor` compares journal, Postgres and the file of
effects at the end; `report` writes the JSON; `runner` leads through it.
"""
