"""The tools that a worker knows: the built-in ones, those of user modules, and those added while it
runs.

The worker builds one at start; an agent's steps see a `view` of it, so that a tool outside the view
does not exist for that agent. Adding a built-in tool is its file and a line in `BUILTINS`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator

from harness_common.contracts.sandbox import SandboxTier
from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_common.contracts.tool_schema import (
    check_name,
    check_schema,
    check_tenant_schema,
    invalid,
)
from harness_common.core.errors import Invalid, NotFound
from harness_common.settings import Settings
from harness_worker.egress.client import Egress
from harness_worker.tools import (
    append_line,
    artifact_read,
    ask_user,
    calculate,
    chart,
    file_list,
    file_read,
    file_write,
    http_get,
    memory_forget,
    memory_save,
    memory_search,
    python_run,
    run_program,
    skill_read,
    spawn_run,
    sql_query,
    wait,
    write_report,
)

BUILTINS: tuple[Callable[[Settings], list[Tool]], ...] = (
    append_line.build,
    artifact_read.build,
    calculate.build,
    chart.build,
    file_list.build,
    file_read.build,
    file_write.build,
    memory_forget.build,
    memory_save.build,
    memory_search.build,
    python_run.build,
    run_program.build,
    skill_read.build,
    sql_query.build,
    wait.build,
    ask_user.build,
    spawn_run.build,
    write_report.build,
)

_MAX_ATTEMPTS = 10


class ToolRegistry:
    """Tools by name; every one in it has a name and a schema that all providers accept."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.add(tool)

    @classmethod
    def from_settings(cls, settings: Settings, egress: Egress | None = None) -> ToolRegistry:
        """Build the registry of a worker: `BUILTINS`, those that send requests out by `egress`,
        then the modules of `worker.tools`.
        """
        registry = cls(tool for build in BUILTINS for tool in build(settings))
        for tool in http_get.build(settings, egress):
            registry.add(tool)
        for module in settings.worker.tools:
            registry.load_module(module)
        return registry

    def add(self, tool: Tool) -> None:
        """Add a tool; raises `Invalid` (`TOOL_INVALID`) for a bad name or schema or a name already
        taken.
        """
        check_spec(tool.spec)
        if tool.spec.name in self._tools:
            raise invalid(tool.spec.name, "is already registered; give one of the two another name")
        self._tools[tool.spec.name] = tool

    def remove(self, name: str) -> Tool:
        """Take a tool out and return it; raises `NotFound` when it is not there."""
        tool = self.get(name)
        del self._tools[name]
        return tool

    def get(self, name: str) -> Tool:
        """Return a tool; raises `NotFound` (`TOOL_NOT_FOUND`) that names similar ones, for the
        model to read.
        """
        found = self._tools.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self._tools, n=3)
        hint = f"Did you mean {' or '.join(near)}? " if near else ""
        raise NotFound(
            f"There is no tool {name[:64]!r}. {hint}"
            f"Available: {', '.join(sorted(self._tools)) or 'none'}. Call one of these instead.",
            code="TOOL_NOT_FOUND",
            tool=name[:64],
            similar=near,
        )

    def view(self, names: Iterable[str]) -> ToolRegistry:
        """Return a registry of these tools only, in this order; raises `NotFound` for one that is
        not here.
        """
        view = ToolRegistry()
        view._tools = {name: self.get(name) for name in names}
        return view

    def with_(self, tools: Iterable[Tool]) -> ToolRegistry:
        """Return a registry of these tools as well; the first of a name stays."""
        wider = ToolRegistry()
        wider._tools = {tool.spec.name: tool for tool in tools} | self._tools
        return wider

    def load_module(self, module: str) -> list[Tool]:
        """Import a module and add the `Tool` values at its top level; returns them.

        A value under two names is added once. Raises `Invalid` when the module cannot be imported
        or holds no tool.
        """
        try:
            namespace = vars(importlib.import_module(module))
        except ImportError as problem:
            raise Invalid(
                f"The tool module {module!r} cannot be imported: {problem}. "
                "Check HARNESS_WORKER__TOOLS and the Python path of the worker.",
                code="TOOL_INVALID",
                module=module,
            ) from problem
        tools = list({id(v): v for v in namespace.values() if isinstance(v, Tool)}.values())
        if not tools:
            raise Invalid(
                f"The module {module!r} holds no tool. "
                "Decorate a module-level function with harness_worker.sdk.tool.",
                code="TOOL_INVALID",
                module=module,
            )
        for tool in tools:
            self.add(tool)
        return tools

    def specs(self) -> tuple[ToolSpec, ...]:
        """List the specifications, in the order of registration."""
        return tuple(tool.spec for tool in self._tools.values())

    def names(self) -> tuple[str, ...]:
        """List the names, in the order of registration."""
        return tuple(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


def check_spec(spec: ToolSpec) -> None:
    """Refuse a specification that a provider or the validator would choke on; raises `Invalid`
    (`TOOL_INVALID`).
    """
    check_name(spec.name)
    if not spec.description.strip():
        raise invalid(spec.name, "has no description; say what it does and when to use it")
    if spec.hosts and spec.sandbox is not SandboxTier.A:
        raise invalid(spec.name, 'names `hosts`, which needs sandbox="A": tier B has no sockets')
    check_schema(spec.name, spec.input_schema)
    _check_faults(spec)


def check_foreign_spec(spec: ToolSpec) -> None:
    """Refuse what `check_spec` does, and a schema of a stranger that could hang a shared worker."""
    check_spec(spec)
    check_tenant_schema(spec.name, spec.input_schema)


def _check_faults(spec: ToolSpec) -> None:
    """Refuse what a tool cannot promise of its failures and results."""
    if spec.max_attempts is not None and not 1 <= spec.max_attempts <= _MAX_ATTEMPTS:
        cause = f"has max_attempts {spec.max_attempts}; use 1 to {_MAX_ATTEMPTS}"
        raise invalid(spec.name, cause)
    if spec.cache_s is not None and (spec.effect is not EffectClass.READ or spec.cache_s <= 0):
        raise invalid(spec.name, "has cache_s, which is for reads, and more than 0")
    if spec.fallback == spec.name:
        raise invalid(spec.name, "is its own fallback; name another tool")
    if spec.output_schema is not None:
        check_schema(spec.name, spec.output_schema, "output schema", any_type=True)
