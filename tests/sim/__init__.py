"""Deterministic simulation: the product's rules under virtual time, faults, and an auditor.

`python -m tests.sim` plays seeds; `--seed N --trace` shows one; `--gate` breaks one mechanism after
the other and expects to see each. A seed is a small platform: two tenants with little room, three
runs or more, two or three workers, two schedulers, a Postgres and a Redis, and some kinds of faults
drawn for it (`faults`). The same seed gives the same history.

What is the product's own: `core.rules` and all of `core` below it, `apply.prepare`, `finish` and
`arrived`, `rows.run_from_row`, `claim.fresh_calls`, `tools.call.PendingCall`, `core.liveness`,
`admit.blocks`. What is modelled: the SQL (`store`, `ledger`, `fleet`; compared with the real
Postgres by `tests/store/test_sim_store.py`), Redis (`bus`), and the order of what is awaited
(`worker`, `steps`, `scheduler`), which names the functions it follows.

To add: a script of a run is a function in `workload.SCRIPTS`; a fault is a method in
`faults.KINDS` and a name in `coverage.FAULTS`; a broken mechanism is a line in `mutations` and the
place that asks for it; a new pair of the table must be reached, or stand in
`coverage.NOT_REACHED` with the reason.

Not simulated: locks held over several round trips, batches of commits, forks, artifacts, progress
events, and the time that a statement takes in Postgres.
"""
