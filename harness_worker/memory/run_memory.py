"""The memory of one run, and what one of its calls may do with it (`contracts.memory.Memory`).

A run sees the facts of its session's user in its agent's namespace, and those that all users of
the namespace share. What it saves is its user's. Whose run it is comes from the session, never from
what a model says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from harness_common.contracts.embeddings import Embedder
from harness_common.contracts.memory import MemorySpec, Remembered, Saved
from harness_common.core.errors import Denied
from harness_common.core.fact import Source, source_of
from harness_common.core.ids import decode, encode
from harness_common.core.message import Json, Message
from harness_common.core.taint import UNTRUSTED
from harness_common.redaction import redactor
from harness_common.settings import MemorySettings
from harness_common.store import memories
from harness_common.store.db import Database
from harness_common.store.memories import NewFact, Whose
from harness_common.store.rows import StoredRun


@dataclass(frozen=True, slots=True)
class RunMemory:
    """The memory that belongs to a run."""

    db: Database
    embedder: Embedder | None
    config: MemorySettings
    run: StoredRun
    spec: MemorySpec
    said: Sequence[Message] = ()
    """The conversation so far, which facts have to rest on."""

    async def whose(self) -> Whose:
        """Say whose memory it is."""
        run = self.run
        user_id = await memories.owner_of(self.db, run.tenant_id, run.session_id)
        return Whose(run.tenant_id, self.spec.namespace or run.acting.name, user_id)

    async def search(
        self, query: str, limit: int, *, trusts: Sequence[str], related: bool = False
    ) -> list[Remembered]:
        """Return the facts that fit best."""
        return await memories.search(
            self.db, await self.whose(), query, self.embedder,
            limit=limit, trusts=trusts, related=related,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CallMemory:
    """The memory as one tool call sees it."""

    memory: RunMemory
    step: int
    index: int
    marks: frozenset[str] = frozenset()
    """What the run holds (`core.taint`)."""
    approval_id: UUID | None = None
    """A person's yes to this call."""
    principal: str = ""

    async def search(self, query: str, limit: int) -> list[Remembered]:
        """Return the facts that fit best, the best first."""
        return await self.memory.search(query, limit, trusts=memories.ANY_TRUST)

    async def save(
        self, text: str, *, kind: str, quote: str, expires_days: int | None = None
    ) -> Saved:
        """Keep a fact; raises `Denied` and `Invalid` for what may not be kept, and says why."""
        mine = self.memory
        fact = memories.checked(text)
        if redactor.clean(mine.run.tenant_id, fact) != fact:
            raise Denied(
                "this holds one of the tenant's secrets; secrets are not remembered",
                code="FACT_IS_SECRET",
                field="text",
            )
        if kind not in mine.spec.kinds:
            raise Denied(
                f"this agent remembers {', '.join(mine.spec.kinds) or 'nothing'}, not {kind}",
                code="FACT_KIND",
                field="kind",
                value=kind,
            )
        source = source_of(quote, mine.said)
        if source is None:
            raise Denied(
                "nobody has said the quote in this session: give the very words of the user or of "
                "a tool's result (at least 8 characters) that the fact rests on. What you "
                "concluded yourself is not remembered",
                code="FACT_UNVERIFIED",
                field="quote",
                value=quote[:100],
            )
        new = NewFact(
            fact,
            kind,
            self._trust(source),
            self._provenance(source),
            once=f"{mine.run.id.hex}.{self.step}.{self.index}",
            expires_days=expires_days or mine.spec.expires_days or mine.config.expires_days,
        )
        whose = await mine.whose()
        row = await memories.save(mine.db, whose, new, mine.embedder, mine.config.max_facts)
        return Saved(encode("memory", row["id"]), row["made"], row["trust"], row["expires_at"])

    async def forget(self, memory_id: str) -> bool:
        """Delete a fact of the user for good."""
        mine = self.memory
        return await memories.forget(mine.db, await mine.whose(), decode("memory", memory_id))

    def _trust(self, source: Source) -> str:
        """Say how far the fact may be trusted. Policy has let the call through: by itself, or since
        a person looked at it, or by a rule of the tenant.
        """
        if UNTRUSTED not in self.marks and source.trust == "trusted":
            return "trusted"
        return "approved" if self.approval_id is not None else "untrusted"

    def _provenance(self, source: Source) -> dict[str, Json]:
        run, agent = self.memory.run, self.memory.run.acting
        out: dict[str, Json] = {
            "run": encode("run", run.id),
            "call": f"{self.step}.{self.index}",
            "agent": f"{agent.name}@{agent.version}",
            "said_by": source.who,
            "source_trust": source.trust,
            "by": self.principal,
        }
        if self.approval_id is not None:
            out["approval"] = encode("approval", self.approval_id)
        return out
