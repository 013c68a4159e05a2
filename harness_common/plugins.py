"""Find the plugins that are installed beside Harness, and say which of them are broken.

A worker does so at its start; the API only when a setting names a part that is not built in; the
command line to list them. A plugin is whole or it is not there: one with a single fault brings
nothing, and stops nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from harness_common.contracts.plugin import GROUP, Plugin
from harness_common.contracts.skill import SkillSpec
from harness_common.contracts.tool import Tool

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_FACTORIES: Final = ("providers", "embeddings", "blobs", "guardrails")
BUILT_IN: Final[Mapping[str, frozenset[str]]] = {
    "embeddings": frozenset({"auto", "local", "openai", "none"}),
    "blobs": frozenset({"file", "memory", "s3"}),
}
"""Names that a plugin cannot have. Those of tools and providers are the worker's to say."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin that is installed, and what became of it."""

    name: str
    package: str
    version: str
    plugin: Plugin | None = None
    """None for one that is broken, or left out by the settings."""
    problem: str = ""
    """Why it is not there."""

    def told(self) -> dict[str, Any]:
        """Describe it for people."""
        return {
            "name": self.name,
            "package": self.package,
            "version": self.version,
            "parts": self.plugin.parts() if self.plugin else {},
            "problem": self.problem,
        }

    def broken(self, problem: str) -> Loaded:
        """Return it as one that brings nothing."""
        return Loaded(self.name, self.package, self.version, None, problem)


@cache
def discover(wanted: tuple[str, ...] = ("*",)) -> tuple[Loaded, ...]:
    """Load the plugins that `wanted` (names or globs) lets in, by name; once in a process."""
    taken: dict[tuple[str, str], str] = {}
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        one = _load(entry, wanted)
        if one.plugin is not None:
            one = _alone(one, one.plugin, taken)
        found.append(one)
    return tuple(found)


LEFT_OUT: Final = "left out by HARNESS_PLUGINS"


def _load(entry: EntryPoint, wanted: Sequence[str]) -> Loaded:
    package = entry.dist.name if entry.dist else "?"
    one = Loaded(entry.name, package, entry.dist.version if entry.dist else "")
    if not any(fnmatchcase(entry.name, glob) for glob in wanted):
        return one.broken(LEFT_OUT)
    try:
        value = entry.load()
        if callable(value) and not isinstance(value, Plugin):
            value = value()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it does, it is not ours
        return one.broken(f"{entry.value} cannot be loaded: {type(error).__name__}: {error}"[:500])
    if not isinstance(value, Plugin):
        return one.broken(f"{entry.value} is a {type(value).__name__}, not a Plugin")
    problem = next(_faults(value), None)
    if problem is not None:
        return one.broken(problem)
    return Loaded(one.name, one.package, one.version, value)


def _faults(plugin: Plugin) -> Iterator[str]:
    """Say what is wrong with what a plugin brings."""
    parts: Any = plugin  # it may be anything: only what follows makes it a Plugin
    for tool in parts.tools:
        if not isinstance(tool, Tool):
            yield f"{tool!r} is no tool: make it with harness_worker.sdk.tool"
            return
    for kind in _FACTORIES:
        for name, factory in getattr(parts, kind).items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                yield f"{name!r} of {kind} is not a name: letters, digits, `_`, `-` and `.`"
            elif not callable(factory):
                yield f"{name!r} of {kind} cannot be called"
    for name, spec in parts.skills.items():
        if not isinstance(spec, SkillSpec):
            yield f"the skill {name!r} is no SkillSpec"


def _alone(one: Loaded, plugin: Plugin, taken: dict[tuple[str, str], str]) -> Loaded:
    """Refuse a plugin that brings a name which is built in, or which one before it has brought."""
    names = [(kind, name) for kind, names in plugin.parts().items() for name in names]
    for kind, name in names:
        if name in BUILT_IN.get(kind, ()):
            return one.broken(f"{name!r} of {kind} is built in; give it another name")
        if (kind, name) in taken:
            owner = taken[kind, name]
            return one.broken(f"{name!r} of {kind} is the plugin {owner}'s already")
    if len(set(names)) < len(names):
        return one.broken("two of its parts have one name")
    taken.update(dict.fromkeys(names, one.name))
    return one


def part(wanted: tuple[str, ...], kind: str, name: str) -> Callable[..., Any] | None:
    """Return what the plugins have by that name: `kind` is a field of `Plugin`."""
    for one in discover(wanted):
        found = getattr(one.plugin, kind).get(name) if one.plugin is not None else None
        if found is not None:
            return found  # type: ignore[no-any-return]
    return None
