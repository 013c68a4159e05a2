"""Alembic's entry: runs migrations on the connection that `store.migrate` hands over."""

from __future__ import annotations

from alembic import context

from harness_common.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    compare_type=True,
    compare_server_default=False,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
