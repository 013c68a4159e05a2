"""Clients that submit, cancel and repeat, and their journal of what was acknowledged."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.agents import AGENTS
from tests.chaos.stack import ChaosStack

_TIMEOUT_S = 8.0
_CLIENTS = 24
_PATIENCE_S = 120.0


@dataclass(slots=True)
class Acknowledged:
    """A run that an API has said it has."""

    run_id: str
    agent: str
    tenant: int
    key: str
    cancelled: str | None = None
    """The status that the answer to our cancel showed; None if none was asked or answered."""


@dataclass(slots=True)
class Journal:
    """What clients know: kept outside the platform."""

    path: Path
    runs: dict[str, Acknowledged] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    twins: list[str] = field(default_factory=list)
    """Idempotency keys that gave two runs."""
    unanswered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Answers 4xx: nothing that these clients ask is wrong."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, run: Acknowledged) -> None:
        """Write down an acknowledged run."""
        with self.lock:
            self.runs[run.run_id] = run
            with self.path.open("a") as file:
                file.write(json.dumps([run.run_id, run.agent, run.tenant, run.key]) + "\n")


class Workload:
    """Submits `count` runs, evenly over `seconds`."""

    def __init__(self, stack: ChaosStack, count: int, seconds: float, seed: int) -> None:
        self._stack = stack
        self._count = count
        self._seconds = seconds
        self._seed = seed
        self._give_up_at = float("inf")
        self._stop = threading.Event()
        limits = httpx.Limits(max_connections=64)
        self._clients = [
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=_TIMEOUT_S, limits=limits)
            for port in stack.api_ports
        ]
        self.journal = Journal(stack.folder / "journal.jsonl")
        self._pool = ThreadPoolExecutor(_CLIENTS, thread_name_prefix="client")
        self._thread = threading.Thread(target=self._submit_all, name="workload")

    def put_agents(self) -> None:
        """Create the agents in every tenant."""
        for key in self._stack.keys:
            for agent in AGENTS:
                headers = {"Authorization": f"Bearer {key}"}
                answer = self._clients[0].post("/v1/agents", json=agent.body(), headers=headers)
                assert answer.status_code in {200, 201}, answer.text

    def start(self) -> None:
        """Begin to submit."""
        self._thread.start()

    def stop(self) -> None:
        """Submit no more."""
        self._stop.set()

    def finish(self) -> None:
        """Wait until every client has its answer, or for `_PATIENCE_S` after the last fault."""
        self._give_up_at = time.monotonic() + _PATIENCE_S
        self._thread.join()
        self._pool.shutdown(wait=True)
        for client in self._clients:
            client.close()

    def _submit_all(self) -> None:
        began = time.monotonic()
        for n in range(self._count):
            due = began + self._seconds * n / self._count
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            self._pool.submit(self._one, random.Random(f"{self._seed}.{n}"), n)

    def _one(self, chance: random.Random, n: int) -> None:
        (agent,) = chance.choices(AGENTS, [a.weight for a in AGENTS])
        tenant = n % len(self._stack.keys)
        key = uuid.UUID(int=chance.getrandbits(128)).hex
        body = {"agent": agent.name, "input": f"run {n}"}
        seen = self._until_answered(chance, tenant, "/v1/runs", body, key)
        if seen is None:
            self.journal.unanswered.append(key)
            return
        run = Acknowledged(seen["id"], agent.name, tenant, key)
        self.journal.note(run)
        if chance.random() < 0.1:
            again = self._until_answered(chance, tenant, "/v1/runs", body, key)
            if again is not None and again["id"] != run.run_id:
                self.journal.twins.append(key)
        if chance.random() < 0.08:
            time.sleep(chance.uniform(0.0, 2.5))
            path = f"/v1/runs/{run.run_id}/cancel"
            answer = self._until_answered(chance, tenant, path, {"reason": "chaos"}, None)
            run.cancelled = answer["status"] if answer else None

    def _until_answered(
        self, chance: random.Random, tenant: int, path: str, body: dict[str, Any], key: str | None
    ) -> dict[str, Any] | None:
        """Ask one API after the other, as a careful client does, until one accepts."""
        headers = {"Authorization": f"Bearer {self._stack.keys[tenant]}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        which = chance.randrange(len(self._clients))
        while time.monotonic() < self._give_up_at:
            which = (which + 1) % len(self._clients)
            try:
                answer = self._clients[which].post(path, json=body, headers=headers)
            except httpx.TransportError as error:
                self.journal.answers[type(error).__name__] += 1
            else:
                self.journal.answers[str(answer.status_code)] += 1
                if answer.status_code == 202:
                    seen: dict[str, Any] = answer.json()
                    return seen
                if answer.status_code < 500:
                    self.journal.refused.append(f"{path}: {answer.status_code} {answer.text}"[:400])
                    return None
            time.sleep(chance.uniform(0.1, 0.6))
        return None
