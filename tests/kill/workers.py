"""Worker processes that are cheap to start: a warm process that forks one for each doorbell.

Run as `python -m tests.kill.workers`: a line of JSON on standard input is a doorbell, a line on
standard output says how its worker ended: its exit status, -9 for one that was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any
from uuid import UUID

from harness_common.settings import DatabaseSettings
from harness_common.store.db import Database
from harness_worker.advance import answer
from tests.kill.points import Death, MortalBreakers, Point, make_mortal, make_tools
from tests.store.play import sql
from tests.worker.runtime import make_runtime


async def work(bell: dict[str, Any]) -> None:
    """Be a worker that answers one doorbell."""
    death = Death(Point(bell["point"]) if bell["point"] else None, bell["coin"])
    make_mortal(death)
    async with Database(bell["url"], DatabaseSettings(pool_min=1, pool_max=2)) as db:
        await db.ready()
        runtime = await make_runtime(db, tools=make_tools(bell["effects"], death))
        breakers = MortalBreakers(db, None, runtime.clock.now, runtime.settings.tool)
        breakers.death = death
        runtime.breakers = breakers
        # A run that two workers died of is only given to one that holds no other.
        await sql(db, "UPDATE workers SET concurrency = 1 WHERE incarnation = :w", w=runtime.worker)
        await answer(runtime, UUID(bell["tenant_id"]), UUID(bell["run_id"]), bell["version"])


def main() -> None:
    """Fork a worker for each line until the input ends."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(work(json.loads(line)))
            except BaseException as error:  # noqa: BLE001 - the child must not run the loop above
                sys.stderr.write(f"worker failed: {error!r}\n")
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
