"""What Postgres says of a failure holds values of rows: none of them reaches a log."""

from __future__ import annotations

import traceback

import psycopg
import pytest

from harness_common.core.errors import Conflict
from tests.store.play import sql

CANARY = "canary7f3a"
AGENT = (
    "INSERT INTO agents (tenant_id, name, version, spec, digest, created_by) "
    f"VALUES (:t, '{CANARY}', :v, cast(:s AS jsonb), '', '')"
)


async def test_a_clash_names_its_constraint_and_no_value(play, db):
    values = {"t": play.tenant_id, "v": 1, "s": "{}"}
    await sql(db, AGENT, **values)
    with pytest.raises(psycopg.errors.UniqueViolation) as caught:
        await sql(db, AGENT, **values)
    shown = "".join(traceback.format_exception(caught.value))
    assert "duplicate key value" in shown
    assert str(caught.value.diag.constraint_name) in shown
    assert CANARY not in shown
    assert play.tenant_id.hex not in shown.replace("-", "")
    assert CANARY not in repr(caught.value)


async def test_neither_does_the_first_line_of_a_value_that_does_not_fit(db):
    with pytest.raises(psycopg.DataError) as caught:
        await sql(db, "SELECT cast(cast(:word AS text) AS int)", word=f'{CANARY}" and "{CANARY}')
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    assert "invalid input syntax for type integer" in str(caught.value)


async def test_nor_what_was_made_of_such_a_failure(play, db):
    values = {"t": play.tenant_id, "v": 1, "s": "{}"}
    await sql(db, AGENT, **values)

    async def make() -> None:
        async with db.transaction():
            try:
                await sql(db, AGENT, **values)
            except psycopg.errors.UniqueViolation as error:
                raise Conflict("it is there already") from error

    with pytest.raises(Conflict) as caught:
        await make()
    assert CANARY not in "".join(traceback.format_exception(caught.value))
