"""What a run's messages must be: every call answered right after it, in the order asked, by what
the ledger holds; a child's result that of its own child; every word of a person said once, in
order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_common.store import json_codec
from tests.sim.world import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.sim.store import Store
    from tests.sim.tables import Row

_ENDED = {"succeeded", "failed", "cancelled"}


@dataclass(slots=True)
class Talk:
    """The messages of one run."""

    store: Store
    row: Row
    steered: Sequence[str]

    def check(self) -> None:
        """Raise `Violation` where a message is lost, doubled or out of place."""
        run_id = self.row["id"]
        steps = sorted(step for owner, step in self.store.calls if owner == run_id)
        said: list[str] = []
        asked: list[str] | None = None
        for n, text in enumerate(self.store.messages[run_id]):
            message = json_codec.loads(text)
            blocks = message["content"]
            if (message["role"] == "tool") != (asked is not None):
                raise Violation("talk", f"message {n + 1} of run {run_id} is {message['role']}")
            if asked is not None:
                if [b["tool_use_id"] for b in blocks] != asked:
                    raise Violation("talk", f"message {n + 1} of run {run_id} answers others")
                self._answers(steps.pop(0), blocks)
                asked = None
            elif message["role"] == "user" and n:
                said += [b["text"] for b in blocks]
            else:
                asked = [b["id"] for b in blocks if b["type"] == "tool_use"] or None
        if asked is not None and self.row["status"] == "succeeded":
            raise Violation("talk", f"run {run_id} succeeded with a call open")
        kept = said + list(self.row["memo"].get("steer", ()))
        if kept != list(self.steered):
            raise Violation("talk", f"run {run_id} was told {self.steered}, and has {kept}")

    def _answers(self, step: int, blocks: Sequence[dict[str, Any]]) -> None:
        """Results are the ledger's, and a child's is its own child's, which has ended."""
        run_id = self.row["id"]
        for call, block in zip(self.store.calls[run_id, step], blocks, strict=True):
            if call["result"] != block["content"]:
                raise Violation("talk", f"result of {step}.{call['idx']} is not the ledger's")
            if call["name"] != "spawn" or not call["result"]:
                continue
            child = self.store.child(run_id, step, call["idx"])
            if child is None or child["status"] not in _ENDED:
                raise Violation("children", f"{step}.{call['idx']} is joined before its end")
            if not call["result"].startswith(child["id"].hex):
                raise Violation("children", f"{step}.{call['idx']} has another child's result")
