"""May this call be made? The answer to that question, and how it is reached.

Pure: facts and rules in, a decision with its whole derivation out. The layers are asked in order,
and within a layer the first rule that matches decides:

1. hard denials, which no rule can switch off (role and tags, timeout, today's money);
2. the rules of the agent; 3. the rules of the tenant;
4. what is built in: taint, the rule of two, risk, effect.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from harness_common.core.message import Json
from harness_common.core.taint import OUTBOUND, PRIVATE, UNTRUSTED, third_of_two
from harness_common.core.values import replace

BUILTIN_VERSION: Final = 1
"""Moves when what is built in decides differently."""

Risk = Literal["low", "medium", "high"]
RISKS: Final[tuple[Risk, ...]] = ("low", "medium", "high")
TaintMode = Literal["ask", "hide", "deny"]
TAINT_MODES: Final[tuple[TaintMode, ...]] = ("ask", "hide", "deny")
"""What happens to dangerous calls of a tainted run; the strictest that was set holds."""
DEFAULT_ROLES: Final[Mapping[str, tuple[str, ...]]] = {"admin": ("*",), "operator": ("*",)}
"""Permission tags by role, as globs. A role that is not here may use tools without tags only."""


class Verdict(StrEnum):
    """What policy says of a call."""

    ALLOW = "allow"
    ASK = "ask"
    """A person decides; the run waits without a worker."""
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a decision may rest on. Stored with the call, so that it can be explained later."""

    tool: str
    effect: str = "read"
    tool_version: str = "1"
    risk: Risk = "low"
    outbound: bool = False
    reads_private: bool = False
    untrusted_output: bool = False
    tags: tuple[str, ...] = ()
    timeout_s: float = 0.0
    timeout_max_s: float | None = None
    """The platform's; a tenant's policy may set a lower one."""
    cost_estimate_usd: float = 0.0
    budget_left_usd: float | None = None
    """What is left of today's money, of the tenant, the platform or the run; None: no limit."""
    principal: str = ""
    """Who started the run (or the run above it)."""
    role: str | None = None
    agent: str = ""
    marks: tuple[str, ...] = ()
    """What the run holds (`core.taint`), before this step."""
    beside: tuple[str, ...] = ()
    """What earlier calls of the same answer add to that."""
    arguments: Json = None
    recheck: bool = False
    """The call has ended: may its recorded result still be read?"""
    doubt: str = ""
    """Why the model itself is not sure of the call, when its agent wants a person asked then."""

    @property
    def tainted(self) -> bool:
        """Tell whether the run has read untrusted content."""
        return UNTRUSTED in self.marks

    @property
    def adds(self) -> frozenset[str]:
        """Return what the call would add to what the run holds."""
        pairs = (
            (UNTRUSTED, self.untrusted_output),
            (PRIVATE, self.reads_private),
            (OUTBOUND, self.outbound),
        )
        return frozenset(mark for mark, yes in pairs if yes)

    def to_json(self) -> dict[str, Json]:
        """Write the facts; the arguments are in the ledger already, here is their digest."""
        out = {name: getattr(self, name) for name in _FACTS}
        out["arguments"] = digest_of(self.arguments)
        if not self.doubt:
            del out["doubt"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in out.items()}

    @staticmethod
    def from_json(data: Mapping[str, Json], arguments: Json) -> Facts:
        """Read what `to_json` wrote; what another version wrote beside it is left out."""
        known = {k: data[k] for k in _FACTS if k in data}
        lists = {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
        return Facts(**{**known, **lists, "arguments": arguments})


_FACTS: Final = tuple(f.name for f in fields(Facts))

ArgumentTest = Callable[[Json], str | None]
"""Says why arguments are not as a rule wants them; None when they are."""


@dataclass(frozen=True, slots=True)
class Match:
    """What a rule is about; None means that it does not care."""

    tools: tuple[str, ...] | None = None
    effects: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    risk_at_least: Risk | None = None
    outbound: bool | None = None
    agents: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None
    tainted: bool | None = None
    arguments: ArgumentTest | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a tenant or an agent."""

    name: str
    then: Verdict
    match: Match = field(default_factory=Match)
    reason: str = ""
    approver_roles: tuple[str, ...] | None = None
    four_eyes: bool = False
    expires_s: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the rules of a tenant or an agent; version 0 is the absence of any."""

    version: int = 0
    rules: tuple[Rule, ...] = ()
    taint: TaintMode | None = None
    timeout_max_s: float | None = None
    roles: Mapping[str, tuple[str, ...]] | None = None
    untrusted: tuple[str, ...] = ()
    """Tools whose results are untrusted although their specification does not say so."""


NO_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True)
class Policies:
    """What applies to the calls of one run, as read at the start of its step."""

    tenant: Policy = NO_POLICY
    agent: Policy = NO_POLICY

    @property
    def version(self) -> str:
        """Name what decided, for approvals that are bound to it."""
        return f"tenant@{self.tenant.version} agent@{self.agent.version} builtin@{BUILTIN_VERSION}"

    @property
    def taint(self) -> TaintMode:
        """Return the strictest answer to taint that was set."""
        set_ = [p.taint for p in (self.tenant, self.agent) if p.taint is not None]
        return max(set_, key=TAINT_MODES.index, default="ask")

    def is_untrusted(self, tool: str) -> bool:
        """Tell whether the tenant calls a tool's results untrusted."""
        return any(_fits(tool, p.untrusted) for p in (self.tenant, self.agent))


class Look(NamedTuple):
    """One rule that was looked at: whether it decided, and why (or why not)."""

    layer: str
    rule: str
    matched: bool
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and everything that explains it."""

    verdict: Verdict
    reasons: tuple[str, ...] = ()
    rule: str | None = None
    """The rule that decided, as `layer.name`; `builtin.` and `hard.` are nobody's rules."""
    policy_version: str = ""
    risk: Risk = "low"
    approver_roles: tuple[str, ...] = ("approver", "admin")
    """Who may answer, when the verdict is to ask."""
    four_eyes: bool = False
    """Whether who started the run may not be who approves."""
    expires_s: float | None = None
    """How long a person has; None takes the tenant's default."""
    facts: Facts | None = None
    looks: tuple[Look, ...] = ()
    """Every rule that was looked at, in order."""

    def to_json(self) -> dict[str, Json]:
        """Write what the ledger keeps: from it and the policy's versions, which never change, the
        derivation can be made again.
        """
        facts = self.facts.to_json() if self.facts else None
        return {
            "verdict": str(self.verdict),
            "rule": self.rule,
            "reasons": list(self.reasons),
            "version": self.policy_version,
            "facts": facts,
            "facts_digest": digest_of(facts),
        }


def digest_of(value: Json) -> str:
    """Return the SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def decide(facts: Facts, policies: Policies = Policies()) -> Decision:
    """Say whether the call of `facts` may be made."""
    looks: list[Look] = []
    found = (
        _hard(facts, policies, looks)
        or _rules("agent", facts, policies.agent, looks)
        or _rules("tenant", facts, policies.tenant, looks)
        or _builtin(facts, policies, looks)
    )
    found = _unless_doubted(found, facts, looks)
    return replace(
        found,
        policy_version=policies.version,
        risk=facts.risk,
        facts=facts,
        looks=tuple(looks),
    )


def _unless_doubted(found: Decision, facts: Facts, looks: list[Look]) -> Decision:
    """Ask about a call that may be made, but of which the model is not sure."""
    if not facts.doubt or found.verdict is not Verdict.ALLOW or facts.recheck:
        return found
    looks.append(Look("builtin", "doubt", True, facts.doubt))
    return Decision(Verdict.ASK, (facts.doubt,), "builtin.doubt")


def offers(facts: Facts, policies: Policies) -> bool:
    """Tell whether a tool is shown to the model: where taint hides, only what some rule may allow
    in spite of it (whatever the arguments will be).
    """
    if policies.taint != "hide" or _guard(facts) is None:
        return True
    rules = policies.agent.rules + policies.tenant.rules
    for rule in rules:
        sure = rule.then is Verdict.DENY and rule.match.arguments is not None
        if not sure and _why_not(replace(rule.match, arguments=None), facts) is None:
            if rule.then is Verdict.DENY:
                return False
            if rule.then is Verdict.ASK or rule.match.tainted:
                return True
    return False


def _hard(facts: Facts, policies: Policies, looks: list[Look]) -> Decision | None:
    """Deny what no rule can allow."""
    for name, problem, fine in (
        ("role", _role_problem(facts, policies), "the role may use every tag of the tool"),
        ("timeout", _timeout_problem(facts, policies), "the timeout is within what is allowed"),
        ("budget", _budget_problem(facts), "the estimate is within what is left of the budget"),
    ):
        looks.append(Look("hard", name, problem is not None, problem or fine))
        if problem is not None:
            return Decision(Verdict.DENY, (problem,), f"hard.{name}")
    return None


def _role_problem(facts: Facts, policies: Policies) -> str | None:
    roles = DEFAULT_ROLES if policies.tenant.roles is None else policies.tenant.roles
    allowed = roles.get(facts.role or "", ())
    lacking = [tag for tag in facts.tags if not _fits(tag, allowed)]
    if not lacking:
        return None
    who = f"the role {facts.role}" if facts.role else "whoever started this run"
    return f"{who} may not use tools with the permission tag {', '.join(lacking)}"


def _timeout_problem(facts: Facts, policies: Policies) -> str | None:
    limits = [s for s in (facts.timeout_max_s, policies.tenant.timeout_max_s) if s is not None]
    limit_s = min(limits, default=None)
    if limit_s is None or facts.timeout_s <= limit_s or facts.recheck:
        return None
    return f"the tool may take {facts.timeout_s:g} s, and {limit_s:g} s is the most allowed"


def _budget_problem(facts: Facts) -> str | None:
    left, wanted = facts.budget_left_usd, facts.cost_estimate_usd
    if left is None or wanted <= 0 or wanted <= left or facts.recheck:
        return None
    return f"the call may cost {wanted:g} USD, and {max(0.0, left):g} USD is left of the budget"


def _rules(layer: str, facts: Facts, policy: Policy, looks: list[Look]) -> Decision | None:
    guard = _guard(facts)
    for rule in policy.rules:
        why = _why_not(rule.match, facts)
        if why is None and rule.then is Verdict.ALLOW and guard and not rule.match.tainted:
            why = f"it does not say `tainted: true`, and {guard[1]}"
        looks.append(Look(layer, rule.name, why is None, why or rule.reason or "it matches"))
        if why is None:
            return _by_rule(layer, rule, facts)
    return None


def _by_rule(layer: str, rule: Rule, facts: Facts) -> Decision:
    reason = rule.reason or f"the {layer}'s rule {rule.name!r} says {rule.then} for {facts.tool}"
    made = Decision(
        rule.then,
        (reason,),
        f"{layer}.{rule.name}",
        four_eyes=rule.four_eyes,
        expires_s=rule.expires_s,
    )
    if rule.approver_roles is None:
        return made
    return replace(made, approver_roles=rule.approver_roles)


def _builtin(facts: Facts, policies: Policies, looks: list[Look]) -> Decision:
    guard = _guard(facts)
    if guard is not None:
        name, why = guard
        mode = policies.taint
        looks.append(Look("builtin", name, True, f"{why} (taint: {mode})"))
        verdict = Verdict.ASK if mode == "ask" else Verdict.DENY
        return Decision(verdict, (why,), f"builtin.{name}")
    fine = "the call is neither a write nor outbound, or nothing untrusted was read"
    looks.append(Look("builtin", "taint", False, fine))
    looks.append(Look("builtin", "rule_of_two", False, "the run would hold at most two of three"))
    if facts.effect == "write" and facts.risk == "high":
        why = f"{facts.tool} writes and its risk is high"
        looks.append(Look("builtin", "risk", True, why))
        return Decision(Verdict.ASK, (why,), "builtin.risk")
    looks.append(Look("builtin", "risk", False, "the tool is no write of high risk"))
    why = f"{facts.effect} tools that the agent declares are allowed"
    looks.append(Look("builtin", "effect", True, why))
    return Decision(Verdict.ALLOW, (why,), "builtin.effect")


def _guard(facts: Facts) -> tuple[str, str] | None:
    """Return the built-in objection to a call by what its run has touched, and its name."""
    if facts.tainted and (facts.effect == "write" or facts.outbound):
        what = "writes" if facts.effect == "write" else "can carry data out"
        return "taint", f"the run has read untrusted content, and {facts.tool} {what}"
    held = frozenset(facts.marks) | frozenset(facts.beside)
    third = third_of_two(held, facts.adds)
    if third is None:
        return None
    rest = ", ".join(sorted(held)) or "none"
    return (
        "rule_of_two",
        f"with {facts.tool} the run would hold all of private data, untrusted content and an "
        f"outbound channel (it has: {rest}; new: {third})",
    )


def _why_not(match: Match, facts: Facts) -> str | None:
    """Return the first condition that does not hold; None when all do."""
    return next(_misses(match, facts), None)


def _misses(match: Match, facts: Facts) -> Iterator[str]:
    lists = (
        ("tool", match.tools, (facts.tool,)),
        ("effect", match.effects, (facts.effect,)),
        ("tags", match.tags, facts.tags),
        ("agent", match.agents, (facts.agent,)),
        ("role", match.roles, (facts.role or "",)),
    )
    for name, globs, values in lists:
        if globs is not None and not any(_fits(value, globs) for value in values):
            yield f"{name} is {', '.join(values) or 'none'}, not {' or '.join(globs)}"
    if match.risk_at_least is not None:
        least = match.risk_at_least
        if RISKS.index(facts.risk) < RISKS.index(least):
            yield f"risk is {facts.risk}, below {least}"
    if match.outbound is not None and match.outbound != facts.outbound:
        yield f"outbound is {_word(facts.outbound)}"
    if match.tainted is not None:
        tainted = facts.tainted or _guard(facts) is not None
        if match.tainted != tainted:
            yield f"tainted is {_word(tainted)}"
    if match.arguments is not None:
        problem = match.arguments(facts.arguments)
        if problem is not None:
            yield f"arguments: {problem}"


def _word(value: bool) -> str:
    return "true" if value else "false"


def _fits(value: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(value, glob) for glob in globs)
