"""What admission and release read and write: streams_read.sql, slots_read.sql, queue_load.sql,
slots_take.sql, slots_write.sql, admit_pick.sql, release_keys.sql, release_sessions.sql.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from tests.sim.tables import Row, Tables

_ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Admission(Tables):
    """Statements over `tenant_slots`, and over the runs that wait for a slot."""

    def _waiting(self, tenant_id: UUID | None = None) -> list[Row]:
        return [
            r
            for r in self.runs.values()
            if r["status"] == "queued"
            and r["held_for"] is None
            and (tenant_id is None or r["tenant_id"] == tenant_id)
        ]

    def streams_read(self) -> list[Row]:
        streams: dict[tuple[UUID, str, bool], list[Row]] = {}
        for r in sorted(self._waiting(), key=_order):
            streams.setdefault((r["tenant_id"], r["queue"], r["started"]), []).append(r)
        return [
            {"tenant_id": t, "queue": q, "started": s, "waiting": len(rows)}
            for (t, q, s), rows in streams.items()
        ]

    def slots_read(self) -> list[Row]:
        """All tenants: there are few."""
        now = self.world.time()
        now_s, since = now.timestamp(), now - timedelta(minutes=1)
        idle = sum(s["running"] == 0 and s["max_running"] > 0 for s in self.slots.values())
        return [
            {
                **s,
                "settled_s": s["used_s"],
                "held_s": s["running"] * now_s - s["turn_sum"] if s["turn_sum"] else 0.0,
                "recent": s["last_admitted_at"] is not None and s["last_admitted_at"] > since,
                "idle": idle,
                "all_running": None,
                "all_starts_per_s": None,
                "now_s": now_s,
            }
            for _, s in sorted(self.slots.items())
        ]

    def queue_load(self, lease_s: float) -> list[Row]:
        now = self.world.time()
        since = now - timedelta(seconds=lease_s)
        load: dict[str, list[int]] = {}
        total = 0
        for w in self.workers.values():
            if w["died_at"] is None and w["stopping_at"] is None and w["seen_at"] > since:
                total += w["concurrency"]
                for queue in w["queues"]:
                    load.setdefault(queue, [0, 0])[0] += w["concurrency"]
        for r in self.runs.values():
            if r["status"] == "running":
                load.setdefault(r["queue"], [0, 0])[1] += 1
        return [
            {"queue": q, "capacity": capacity, "running": running, "total": total}
            for q, (capacity, running) in load.items()
        ]

    def slots_take(self, tenants: Sequence[UUID]) -> list[Row]:
        now = self.world.time()
        return [self.slots[t] | {"now": now} for t in sorted(tenants)]

    def slots_write(self, slots: Sequence[Row]) -> None:
        for w in slots:
            slot = self.slots[w["tenant_id"]]
            slot["granted"], slot["crowded"] = w["granted"], w["crowded"]
            if w["given"]:
                slot["last_admitted_at"] = self.world.time()
        self.flush()

    def starts_charge(self, paid: Sequence[Row]) -> None:
        for p in paid:
            self.slots[p["tenant_id"]]["starts_tat_s"] = p["tat_s"]

    def admit_pick(self, streams: Sequence[Row]) -> list[Row]:
        found: list[tuple[int, Row]] = []
        left: dict[tuple[UUID, str], list[tuple[int, int, Row]]] = {}
        for s in streams:
            mine = [
                r
                for r in self._waiting(s["tenant_id"])
                if r["queue"] == s["queue"] and r["started"] == s["started"]
            ]
            mine.sort(key=_order)
            left.setdefault((s["tenant_id"], s["queue"]), []).extend(
                (s["rank"], s["queue_room"], r) for r in mine[: s["room"]]
            )
        for rows in left.values():
            rows.sort(key=lambda one: _order(one[2]))
            found += [(rank, r) for n, (rank, room, r) in enumerate(rows) if n < room]
        found.sort(key=lambda one: (one[0], *_order(one[1])))
        return [r for _, r in found]

    def slots_lock(self, tenant_id: UUID) -> Row:
        slot, now = self.slots[tenant_id], self.world.time()
        room = min(slot["max_running"], slot["granted"]) - slot["running"]
        return {"room": 100 if self.mutate == "limits" else room, "now": now}

    # Runs that are held back

    def release_keys(self) -> int:
        """All keys at once: there are few."""
        keys: dict[tuple[UUID, str], list[Row]] = {}
        for r in self.runs.values():
            if r["status"] == "queued" and r["held_for"] == "key":
                keys.setdefault((r["tenant_id"], r["concurrency_key"]), []).append(r)
        gone = 0
        for (tenant_id, key), held in keys.items():
            held.sort(key=lambda r: r["queued_at"])
            busy = sum(
                r["tenant_id"] == tenant_id
                and r["concurrency_key"] == key
                and (r["status"] == "running" or (r["status"] == "queued" and not r["held_for"]))
                for r in self.runs.values()
            )
            most = held[0]["concurrency_max"]
            room = most if self.mutate == "key" else max(0, most - busy)
            for r in held[:room]:
                r["held_for"] = None
                gone += 1
        if gone:
            self.flush()
        return gone

    def release_sessions(self) -> int:
        gone = 0
        for r in self.runs.values():
            if r["status"] != "queued" or r["held_for"] != "session":
                continue
            over = all(b["status"] in _ENDED for b in self.line(r["prev_run_id"]))
            if over or self.mutate == "behind":
                r["held_for"] = "key" if r["concurrency_key"] is not None else None
                gone += 1
        if gone:
            self.flush()
        return gone


def _order(row: Row) -> tuple[int, object]:
    return row["priority"], row["queued_at"]
