"""Our store as LangGraph's checkpointer.

A saver belongs to one run and knows the checkpoint that the run has committed (`head`): a step goes
on from there, whatever a dead worker put after it. Without a run it is a plain checkpointer over
all threads of a tenant, as the framework's own conformance suite takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
    get_serializable_checkpoint_metadata,
)

from harness_common.store.connection import Row
from harness_common.store.foreign import Blob, ForeignStore, Place

T = TypeVar("T")


class HarnessSaver(BaseCheckpointSaver[int]):
    """Checkpoints in `foreign_checkpoints`, writes of tasks in `foreign_writes`."""

    def __init__(
        self,
        store: ForeignStore,
        *,
        of_run: bool = False,
        head: str | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._of_run = of_run
        self.head = head
        """The newest checkpoint of the root namespace that counts."""
        self._loop = loop or asyncio.get_running_loop()

    # --- reading ---------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the newest one that counts."""
        place = _place(config)
        if self._of_run and not place.ns and place.checkpoint_id is None:
            if self.head is None:
                return None
            place = Place(place.thread, place.ns, self.head)
        row = await self._store.read(place)
        return None if row is None else await self._tuple(place.thread, place.ns, row)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """List checkpoints, newest first."""
        asked = config["configurable"] if config else {}
        rows = await self._store.list(
            asked.get("thread_id"),
            asked.get("checkpoint_ns"),
            get_checkpoint_id(config) if config else None,
            get_checkpoint_id(before) if before else None,
        )
        left = len(rows) if limit is None else limit
        for row in rows:
            if left <= 0:
                return
            meta = row["payload"]
            if all(meta.get(k) == v for k, v in (filter or {}).items()):
                left -= 1
                yield await self._tuple(row["thread"], row["ns"], row)

    async def _tuple(self, thread: str, ns: str, row: Row) -> CheckpointTuple:
        place = Place(thread, ns, row["checkpoint_id"])
        writes = await self._store.writes(place)
        return CheckpointTuple(
            _config(place),
            self.serde.loads_typed((row["kind"], row["snapshot"])),
            row["payload"],
            _config(Place(thread, ns, row["parent_id"])) if row["parent_id"] else None,
            [
                (w["task_id"], w["channel"], self.serde.loads_typed((w["kind"], w["snapshot"])))
                for w in writes
            ],
        )

    # --- writing ---------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint; the config's own is its parent."""
        del new_versions
        asked = _place(config)
        place = Place(asked.thread, asked.ns, checkpoint["id"])
        meta = dict(get_serializable_checkpoint_metadata(config, metadata))
        run_key = meta.get("run_id")
        await self._store.put(
            place,
            self._blob(checkpoint),
            meta,
            parent_id=asked.checkpoint_id,
            run_key=str(run_key) if run_key else None,
        )
        if not place.ns:
            self.head = place.checkpoint_id
        return _config(place)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task gave, before its superstep is over."""
        rows = [
            (WRITES_IDX_MAP.get(channel, n), channel, self._blob(value))
            for n, (channel, value) in enumerate(writes)
        ]
        await self._store.put_writes(_place(config), task_id, task_path, rows)

    async def adelete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        await self._store.delete(threads=[thread_id])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget what the framework's own runs made."""
        await self._store.delete(run_keys=list(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, with the writes of its tasks."""
        await self._store.copy(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Forget threads, or all but their newest checkpoints."""
        await self._store.delete(threads=thread_ids, keep_latest=strategy == "keep_latest")

    def _blob(self, value: Any) -> Blob:  # noqa: ANN401 - whatever a channel holds
        kind, data = self.serde.dumps_typed(value)
        return Blob(kind, data)

    # --- for synchronous nodes, which run in threads ---------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Do what `aget_tuple` does, from a thread."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Do what `alist` does, from a thread."""

        async def gather() -> Sequence[CheckpointTuple]:
            return [t async for t in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._wait(gather())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Do what `aput` does, from a thread."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Do what `aput_writes` does, from a thread."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Do what `adelete_thread` does, from a thread."""
        self._wait(self.adelete_thread(thread_id))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _place(config: RunnableConfig) -> Place:
    asked = config["configurable"]
    return Place(str(asked["thread_id"]), asked.get("checkpoint_ns", ""), get_checkpoint_id(config))


def _config(place: Place) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": place.thread,
            "checkpoint_ns": place.ns,
            "checkpoint_id": place.checkpoint_id,
        }
    }
