"""What the console's navigation leads to, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    """A page in the navigation; shown to who has the permission, once the page exists."""

    path: str
    title: str
    permission: str
    group: str


NAV: Final[tuple[Entry, ...]] = (
    Entry("/console", "Overview", "runs:read", "Work"),
    Entry("/console/runs", "Runs", "runs:read", "Work"),
    Entry("/console/sessions", "Sessions", "sessions:read", "Work"),
    Entry("/console/approvals", "Approvals", "approvals:read", "Work"),
    Entry("/console/effects", "Unknown effects", "effects:read", "Work"),
    Entry("/console/agents", "Agents", "agents:read", "Build"),
    Entry("/console/tools", "Tools", "tools:read", "Build"),
    Entry("/console/skills", "Skills", "skills:read", "Build"),
    Entry("/console/memories", "Memories", "memories:read", "Build"),
    Entry("/console/schedules", "Schedules", "schedules:read", "Build"),
    Entry("/console/webhooks", "Webhooks", "webhooks:read", "Build"),
    Entry("/console/workers", "Workers", "workers:read", "Platform"),
    Entry("/console/throttles", "Throttles", "workers:read", "Platform"),
    Entry("/console/tenants", "Tenants and limits", "tenant:read", "Platform"),
    Entry("/console/keys", "API keys", "keys:read", "Platform"),
    Entry("/console/audit", "Audit", "audit:read", "Platform"),
    Entry("/flower", "Flower", "platform:read", "Platform"),
)


def shown(permissions: frozenset[str], existing: frozenset[str]) -> list[tuple[str, list[Entry]]]:
    """Return the entries that a caller may open, by group."""
    groups: dict[str, list[Entry]] = {}
    for entry in NAV:
        if entry.permission in permissions and entry.path in existing:
            groups.setdefault(entry.group, []).append(entry)
    return list(groups.items())


def current(path: str) -> str:
    """Return the path of a page's entry: the longest that its own begins with."""
    found = [e.path for e in NAV if path == e.path or path.startswith(f"{e.path}/")]
    return max(found, key=len, default="")
