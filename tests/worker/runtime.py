from functools import partial
from types import SimpleNamespace
from uuid import uuid4

import psycopg

from harness_common.batch import Batcher
from harness_common.settings import Settings, WorkerSettings
from harness_common.store.apply import group_commit
from harness_common.store.claim import claim
from harness_worker.runtime import Runtime


class Leases:
    async def take(self, *a):
        return True

    async def release(self, *a):
        pass


class Live:
    def emit(self, *a):
        pass

    def delta(self, *a):
        pass

    def nudge(self):
        pass


class Bell:
    def __init__(self):
        self.bells = []

    def ring(self, b):
        self.bells.append(b)


async def make_runtime(db, worker=None, **over):
    worker = worker or uuid4()
    s = Settings(worker=WorkerSettings(lease_s=3, renew_s=0.3), **over)
    rt = Runtime(
        settings=s,
        worker=worker,
        name="w",
        db=db,
        heart=db,
        redis=None,
        leases=Leases(),
        channel=None,
        live=Live(),
        bell=Bell(),
        http=None,
        models=SimpleNamespace(),
        tools=SimpleNamespace(),
        blobs=None,
        claims=Batcher(partial(claim, db, worker=worker, hold_s=900), alone_on=(psycopg.Error,)),
        commits=group_commit(db),
    )
    row = await db.fetch_one(
        "worker_register",
        {
            "worker": worker,
            "name": "w",
            "host": "h",
            "pid": 1,
            "queues": ["steps.default"],
            "concurrency": 1,
            "version": "0",
        },
    )
    rt.clock.set(row["now"])
    return rt
