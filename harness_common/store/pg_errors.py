"""What Postgres says of a failure, without the values of rows that it quotes.

An error's text goes into logs, and with a traceback whatever caught it: DETAIL and CONTEXT hold
what tenants wrote. `store.postgres` takes them out of every error of a statement.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

_QUOTED: Final = re.compile(r'".*"', re.DOTALL)


def without_values(error: BaseException) -> None:
    """Leave of an error, and of those it came from, the first line that Postgres said; a value that
    this line quotes is left out as well.
    """
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, psycopg.Error) and at.diag.message_primary is not None:
            said = at.diag.message_primary
            # Of others the first line names columns and constraints.
            at.args = (_QUOTED.sub('"…"', said) if isinstance(at, psycopg.DataError) else said,)
        at = at.__cause__ or at.__context__
