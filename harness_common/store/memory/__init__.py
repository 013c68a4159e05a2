"""A store in this process, for tests and notebooks: the statements of `store/sql` over dicts.

It stands where Postgres stands (`store.connection.Connection`), so that everything above it is the
same code: commands, claims, the one writer, steps and scheduler loops. Nothing is kept when the
process ends, and nobody else sees it. What only Postgres does says so (`NEEDS_POSTGRES`).
`tests/conformance_store` holds both to the same tests.
"""

from harness_common.store.memory.database import MemoryDatabase

__all__ = ["MemoryDatabase"]
