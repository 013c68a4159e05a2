"""The rules of policy, without anything around them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.contracts.policy import parse_policy, read_policy
from harness_common.core.errors import Invalid
from harness_common.core.policy import (
    RISKS,
    TAINT_MODES,
    Decision,
    Facts,
    Match,
    Policies,
    Policy,
    Rule,
    Verdict,
    decide,
    offers,
)
from harness_common.core.taint import ALL_MARKS, memo_with, third_of_two

STRICT = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
WRITE = Facts("pay", effect="write", role="operator", agent="clerk")
TAINTED = replace(WRITE, marks=("untrusted",))


def by(source: str, agent: str = "", facts: Facts = WRITE) -> Decision:
    """Decide under rules as people write them."""
    tenant = parse_policy(source).compiled(1)
    of_agent = parse_policy(agent, for_agent=True).compiled(1) if agent else Policy()
    return decide(facts, Policies(tenant, of_agent))


def rule(text: str) -> str:
    return f"rules: [{text}]"


# -- what is built in ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "verdict", "name"),
    [
        (replace(WRITE, effect="read"), "allow", "builtin.effect"),
        (replace(WRITE, effect="idempotent"), "allow", "builtin.effect"),
        (WRITE, "allow", "builtin.effect"),
        (replace(WRITE, risk="medium"), "allow", "builtin.effect"),
        (replace(WRITE, risk="high"), "ask", "builtin.risk"),
        (TAINTED, "ask", "builtin.taint"),
        (replace(TAINTED, effect="read", outbound=True), "ask", "builtin.taint"),
        (replace(TAINTED, effect="idempotent", outbound=True), "ask", "builtin.taint"),
        (replace(TAINTED, effect="read"), "allow", "builtin.effect"),
        (replace(TAINTED, effect="idempotent"), "allow", "builtin.effect"),
        (replace(TAINTED, effect="read", reads_private=True), "allow", "builtin.effect"),
    ],
)
def test_defaults(facts, verdict, name):
    found = decide(facts)
    assert (found.verdict, found.rule) == (verdict, name)
    assert found.reasons
    assert found.looks[-1].matched
    assert not any(look.matched for look in found.looks[:-1])


@pytest.mark.parametrize("mode", ["hide", "deny"])
def test_a_tenant_makes_taint_stricter(mode):
    assert by(f"taint: {mode}", facts=TAINTED).verdict == "deny"
    assert by(f"taint: {mode}").verdict == "allow", "nothing was read"


def test_the_strictest_answer_to_taint_holds_whoever_gave_it():
    for first in TAINT_MODES:
        for second in TAINT_MODES:
            policies = Policies(Policy(1, taint=first), Policy(1, taint=second))
            assert policies.taint == max((first, second), key=TAINT_MODES.index)


@pytest.mark.parametrize("third", sorted(ALL_MARKS))
def test_the_third_of_three_is_asked_about(third):
    held = tuple(sorted(ALL_MARKS - {third}))
    adds = {"untrusted": "untrusted_output", "private": "reads_private", "outbound": "outbound"}
    more: dict[str, Any] = {adds[third]: True}
    facts = replace(WRITE, effect="read", marks=held, **more)
    found = decide(facts)
    assert found.verdict == "ask"
    if third != "outbound":  # which taint alone asks about
        assert found.rule == "builtin.rule_of_two"
    alone = replace(facts, marks=tuple(m for m in held if m != "untrusted")[:1])
    assert decide(alone).verdict == "allow"
    had = replace(facts, marks=tuple(sorted(ALL_MARKS)))
    assert decide(had).verdict == ("ask" if third == "outbound" else "allow"), "it is no third"


def test_calls_of_one_answer_are_looked_at_together():
    page = replace(WRITE, effect="read", untrusted_output=True, outbound=True)
    assert decide(page).verdict == "allow"
    assert decide(replace(page, beside=("private",))).rule == "builtin.rule_of_two"
    write = replace(WRITE, beside=("untrusted",))
    assert decide(write).verdict == "allow", "it was asked for before the page was read"


def test_rule_of_two_in_itself():
    assert third_of_two(frozenset(), ALL_MARKS) == "outbound, private, untrusted"
    assert third_of_two(ALL_MARKS, frozenset({"private"})) is None
    assert third_of_two(frozenset({"private"}), frozenset({"untrusted"})) is None


def test_marks_are_only_added():
    memo = memo_with({"x": 1}, ["private"])
    assert memo == {"x": 1, "marks": ["private"]}
    assert memo_with(memo, []) is memo
    assert memo_with(memo, ["untrusted", "nonsense"])["marks"] == ["private", "untrusted"]


# -- hard denials ----------------------------------------------------------------------------------

ALLOW_ALL = rule("{name: all, match: {tainted: true}, then: allow}, {name: rest, then: allow}")


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (replace(WRITE, role="viewer", tags=("files",)), "hard.role"),
        (replace(WRITE, role=None, tags=("files",)), "hard.role"),
        (replace(WRITE, timeout_s=31, timeout_max_s=30), "hard.timeout"),
        (replace(WRITE, cost_estimate_usd=2, budget_left_usd=1.5), "hard.budget"),
        (replace(WRITE, cost_estimate_usd=0.1, budget_left_usd=-3), "hard.budget"),
    ],
)
def test_no_rule_switches_a_hard_denial_off(facts, name):
    found = by(ALLOW_ALL, "rules: [{name: a, then: allow}]", facts)
    assert (found.verdict, found.rule) == ("deny", name)


def test_what_is_within_the_limits_is_not_denied():
    fine = replace(
        WRITE, tags=("files", "write"), timeout_s=30, timeout_max_s=30,
        cost_estimate_usd=1, budget_left_usd=1,
    )  # fmt: skip
    assert decide(fine).verdict == "allow"
    assert decide(replace(fine, cost_estimate_usd=0, budget_left_usd=-1)).verdict == "allow"
    assert decide(replace(fine, role=None, tags=())).verdict == "allow"


def test_a_tenant_narrows_roles_and_timeouts():
    source = "roles: {operator: [files, 'db.*']}\nmax_timeout_s: 5"
    assert by(source, facts=replace(WRITE, tags=("db.read",))).verdict == "allow"
    assert by(source, facts=replace(WRITE, tags=("db.read", "network"))).rule == "hard.role"
    assert by(source, facts=replace(WRITE, role="admin", tags=("files",))).rule == "hard.role"
    assert by(source, facts=replace(WRITE, timeout_s=6, timeout_max_s=60)).rule == "hard.timeout"


def test_a_result_that_is_there_costs_nothing_more():
    facts = replace(WRITE, cost_estimate_usd=2, budget_left_usd=0, timeout_s=9, timeout_max_s=1)
    assert decide(facts).verdict == "deny"
    assert decide(replace(facts, recheck=True)).verdict == "allow"
    assert decide(replace(facts, recheck=True, role="viewer", tags=("x",))).verdict == "deny"


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "yes", "no"),
    [
        ("tools: [p*, x]", {}, {"tool": "read"}),
        ("tools: pay", {}, {"tool": "pay_more"}),
        ("effect: [write, idempotent]", {}, {"effect": "read"}),
        ("tags: [bank.*]", {"tags": ("a", "bank.eu")}, {"tags": ("a",)}),
        ("risk_at_least: medium", {"risk": "medium"}, {"risk": "low"}),
        ("risk_at_least: medium", {"risk": "high"}, {"risk": "low"}),
        ("outbound: true", {"outbound": True}, {}),
        ("agent: [clerk]", {}, {"agent": "boss"}),
        ("roles: [operator]", {}, {"role": "admin"}),
        ("roles: [operator]", {}, {"role": None}),
        ("tainted: true", {"marks": ("untrusted",)}, {}),
        ("tainted: false", {}, {"marks": ("untrusted",)}),
        (
            "arguments: {properties: {usd: {maximum: 5}}, required: [usd]}",
            {"arguments": {"usd": 5}},
            {"arguments": {"usd": 5.1}},
        ),
    ],
)
def test_each_condition_of_a_match(match, yes, no):
    source = rule(f"{{name: r, match: {{{match}}}, then: deny, reason: because}}")
    found = by(source, facts=replace(WRITE, **yes))
    assert (found.verdict, found.rule, found.reasons) == ("deny", "tenant.r", ("because",))
    missed = by(source, facts=replace(WRITE, **no))
    assert missed.rule != "tenant.r"
    (look,) = [look for look in missed.looks if look.rule == "r"]
    assert not look.matched
    assert look.why


def test_the_first_rule_that_matches_decides_and_the_agents_come_first():
    tenant = rule("{name: one, match: {tools: [pay]}, then: ask}, {name: two, then: deny}")
    assert by(tenant).rule == "tenant.one"
    assert by(tenant, facts=replace(WRITE, tool="x")).rule == "tenant.two"
    assert by(tenant, rule("{name: mine, then: allow}")).rule == "agent.mine"
    found = by(tenant, rule("{name: mine, match: {tools: [x]}, then: allow}"))
    assert [(look.layer, look.rule) for look in found.looks][3:] == [
        ("agent", "mine"), ("tenant", "one"),
    ]  # fmt: skip


def test_an_ask_says_who_and_for_how_long():
    found = by(rule("{name: r, then: ask, approvers: [admin], four_eyes: true, expires_s: 60}"))
    assert (found.approver_roles, found.four_eyes, found.expires_s) == (("admin",), True, 60)
    assert by(rule("{name: r, then: ask}")).approver_roles == ("approver", "admin")


def test_an_allow_does_not_lift_taint_unless_it_says_so():
    assert by(rule("{name: r, then: allow}"), facts=TAINTED).rule == "builtin.taint"
    written = rule("{name: r, match: {tainted: true}, then: allow}")
    assert by(written, facts=TAINTED).rule == "tenant.r"
    assert by(written).rule == "builtin.effect", "and then it is about tainted calls only"
    third = replace(WRITE, effect="read", marks=("outbound", "private"), untrusted_output=True)
    assert by(rule("{name: r, then: allow}"), facts=third).rule == "builtin.rule_of_two"
    assert by(written, facts=third).rule == "tenant.r"
    assert by(rule("{name: r, then: ask}"), facts=TAINTED).rule == "tenant.r"


def test_hidden_tools():
    hide = Policies(parse_policy("taint: hide").compiled(1))
    assert not offers(TAINTED, hide)
    assert offers(WRITE, hide)
    assert offers(replace(TAINTED, effect="read"), hide)
    assert offers(TAINTED, Policies()), "hiding is what a tenant asks for"
    source = "taint: hide\nrules: [{name: r, match: {tainted: true, arguments: %s}, then: %s}]"
    small = "{properties: {usd: {maximum: 5}}}"
    for then, shown in (("allow", True), ("ask", True), ("deny", False)):
        policies = Policies(parse_policy(source % (small, then)).compiled(1))
        assert offers(TAINTED, policies) is shown
    plain = parse_policy("taint: hide\nrules: [{name: r, then: allow}]").compiled(1)
    assert not offers(TAINTED, Policies(plain))


def test_a_decision_can_be_derived_again_from_what_is_stored():
    arguments = {"usd": 7, "to": "é"}
    policies = Policies(
        parse_policy(rule("{name: r, match: {arguments: {required: [usd]}}, then: ask}")).compiled(
            3
        )
    )
    found = decide(replace(TAINTED, arguments=arguments, tags=("bank",)), policies)
    stored = json.loads(json.dumps(found.to_json()))
    assert arguments not in stored["facts"].values()
    again = decide(Facts.from_json(stored["facts"], arguments), policies)
    assert again.to_json() == stored
    assert again.looks == found.looks
    other = decide(Facts.from_json(stored["facts"], {"usd": 8}), policies)
    assert other.to_json()["facts_digest"] != stored["facts_digest"]
    Facts.from_json({**stored["facts"], "of_a_newer_version": 1}, arguments)


# -- properties ------------------------------------------------------------------------------------

marks = st.sets(st.sampled_from(sorted(ALL_MARKS))).map(lambda s: tuple(sorted(s)))
all_facts = st.builds(
    Facts,
    tool=st.sampled_from(["pay", "read", "send"]),
    effect=st.sampled_from(["read", "idempotent", "write"]),
    risk=st.sampled_from(RISKS),
    outbound=st.booleans(),
    reads_private=st.booleans(),
    untrusted_output=st.booleans(),
    tags=st.sets(st.sampled_from(["a", "b"])).map(tuple),
    timeout_s=st.sampled_from([1.0, 60.0]),
    timeout_max_s=st.sampled_from([None, 30.0]),
    cost_estimate_usd=st.sampled_from([0.0, 1.0]),
    budget_left_usd=st.sampled_from([None, 0.5, 5.0]),
    role=st.sampled_from([None, "viewer", "operator", "admin"]),
    agent=st.sampled_from(["", "clerk"]),
    marks=marks,
    beside=marks,
    recheck=st.booleans(),
)
maybe = st.sampled_from([None, True, False])
matches = st.builds(
    Match,
    tools=st.sampled_from([None, ("*",), ("pay",), ("s*",)]),
    effects=st.sampled_from([None, ("write",), ("read", "idempotent")]),
    tags=st.sampled_from([None, ("a",)]),
    risk_at_least=st.sampled_from([None, *RISKS]),
    outbound=maybe,
    roles=st.sampled_from([None, ("operator",)]),
    tainted=maybe,
)
rules = st.builds(Rule, name=st.just("r"), then=st.sampled_from(list(Verdict)), match=matches)
policies_ = st.builds(
    Policy,
    version=st.just(1),
    rules=st.lists(rules, max_size=4).map(tuple),
    taint=st.sampled_from([None, *TAINT_MODES]),
    timeout_max_s=st.sampled_from([None, 10.0]),
    roles=st.sampled_from([None, {"operator": ("a",)}, {}]),
)
both = st.builds(Policies, policies_, policies_)


@given(all_facts, both, matches, st.integers(0, 4), st.booleans())
def test_one_more_denial_never_allows_anything(facts, policies, match, place, at_tenant):
    deny = Rule("deny", Verdict.DENY, match)
    layer = policies.tenant if at_tenant else policies.agent
    more = replace(layer, rules=(*layer.rules[:place], deny, *layer.rules[place:]))
    wider = Policies(more, policies.agent) if at_tenant else Policies(policies.tenant, more)
    before, after = decide(facts, policies), decide(facts, wider)
    if after.verdict is not Verdict.DENY:
        assert (after.verdict, after.rule) == (before.verdict, before.rule)


@given(all_facts, both)
def test_without_its_rules_a_hard_denial_is_the_same(facts, policies):
    bare = Policies(replace(policies.tenant, rules=()), replace(policies.agent, rules=()))
    hard = str(decide(facts, bare).rule).startswith("hard.")
    assert str(decide(facts, policies).rule).startswith("hard.") is hard


@given(all_facts, both)
def test_a_tainted_write_is_allowed_only_by_a_rule_that_says_so(facts, policies):
    found = decide(facts, policies)
    guarded = facts.tainted and (facts.effect == "write" or facts.outbound)
    if guarded and found.verdict is Verdict.ALLOW:
        layer, _, _ = str(found.rule).partition(".")
        decided = [look for look in found.looks if look.matched]
        of = policies.agent if layer == "agent" else policies.tenant
        assert len(decided) == 1
        index = sum(look.layer == layer for look in found.looks) - 1
        assert of.rules[index].match.tainted is True


@given(all_facts, both)
def test_more_taint_never_makes_a_call_easier_without_a_rule(facts, policies):
    bare = Policies(replace(policies.tenant, rules=()), replace(policies.agent, rules=()))
    worse = replace(facts, marks=tuple(sorted({*facts.marks, "untrusted"})))
    # Who holds all three already is not asked about the third again.
    if not {*worse.marks, *worse.beside} >= ALL_MARKS:
        assert STRICT[decide(worse, bare).verdict] >= STRICT[decide(facts, bare).verdict]


@given(all_facts, both)
def test_every_decision_is_explained_and_can_be_stored(facts, policies):
    found = decide(facts, policies)
    assert found.reasons
    assert [look.matched for look in found.looks].count(True) == 1
    assert found.looks[-1].matched
    stored = json.loads(json.dumps(found.to_json()))
    assert decide(Facts.from_json(stored["facts"], None), policies) == found


@given(all_facts, both)
def test_a_tool_that_is_hidden_would_not_have_been_allowed(facts, policies):
    if not offers(facts, policies):
        assert decide(facts, policies).verdict is Verdict.DENY


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "pointer"),
    [
        ("[]", None),
        ("rules: {", None),
        ("rules: [{name: a, name: b, then: deny}]", None),
        ("a: &x [1]\nb: *x", None),
        ("rules: [{name: a, then: alow}]", "/rules/0/then"),
        ("rules: [{name: a}]", "/rules/0/then"),
        ("rules: [{name: A b, then: deny}]", "/rules/0/name"),
        ("rules: [{name: a, then: deny}, {name: a, then: deny}]", "/rules/1/name"),
        ("rules: [{name: a, then: deny, match: {tool: [x]}}]", "/rules/0/match/tool"),
        ("rules: [{name: a, then: deny, match: {tools: []}}]", "/rules/0/match/tools"),
        ("rules: [{name: a, then: deny, match: {effect: [x]}}]", "/rules/0/match/effect/0"),
        ("rules: [{name: a, then: deny, match: {roles: [boss]}}]", "/rules/0/match/roles/0"),
        ("rules: [{name: a, then: deny, match: {tainted: 1}}]", "/rules/0/match/tainted"),
        ("rules: [{name: a, then: deny, four_eyes: true}]", "/rules/0/four_eyes"),
        ("rules: [{name: a, then: ask, expires_s: 0}]", "/rules/0/expires_s"),
        ("rules: [{name: a, then: deny, match: {arguments: 3}}]", "/rules/0/match/arguments"),
        (
            "rules: [{name: a, then: deny, match: {arguments: {properties: {x: {type: y}}}}}]",
            "/rules/0/match/arguments/properties/x/type",
        ),
        (
            "rules: [{name: a, then: deny, match: {arguments: {$ref: 'http://x/'}}}]",
            "/rules/0/match/arguments/$ref",
        ),
        (
            "rules: [{name: a, then: deny, match: {arguments: {pattern: '(a+)+$'}}}]",
            "/rules/0/match/arguments/pattern",
        ),
        (
            "rules: [{name: a, then: deny, match: {arguments: {pattern: '((a|b)c)*$'}}}]",
            "/rules/0/match/arguments/pattern",
        ),
        (
            "rules: [{name: a, then: deny, match: {arguments: {pattern: '(a'}}}]",
            "/rules/0/match/arguments/pattern",
        ),
        (
            "rules: [{name: a, then: deny, match: {arguments: {not: {pattern: '(?=a)a*a*a*b'}}}}]",
            "/rules/0/match/arguments/not/pattern",
        ),
        (
            "rules: [{name: a, then: deny, match: {arguments: {patternProperties: {a*: false}}}}]",
            "/rules/0/match/arguments/patternProperties",
        ),
        ("taint: never", "/taint"),
        ("hard: off", "/hard"),
        ("roles: {boss: [x]}", "/roles/boss"),
        ("max_timeout_s: 0", "/max_timeout_s"),
        ("x: !!python/object/apply:os.system [ls]", None),
        ("rules: [{name: a, then: deny, reason: !!binary aGk=}]", None),
    ],
)
def test_mistakes_are_named_by_pointer(source, pointer):
    with pytest.raises(Invalid) as caught:
        parse_policy(source)
    assert caught.value.error_code == "POLICY_INVALID"
    assert caught.value.detail["field"] == pointer
    assert caught.value.detail["errors"][0]["field"] == (pointer or "")
    if pointer:
        assert pointer in caught.value.message


@pytest.mark.parametrize("pattern", [r"^https://[a-z.]+/", r"^(GET|PUT)$", r"^\(a+\)+$", "[(+*)]+"])
def test_harmless_patterns_are_taken(pattern):
    source = json.dumps(
        {"rules": [{"name": "a", "then": "deny", "match": {"arguments": {"pattern": pattern}}}]}
    )
    assert parse_policy(source).rules[0].match.arguments == {"pattern": pattern}


@pytest.mark.parametrize("pattern", ["(?:a?){25}a{25}$", "a*a*a*a*b"])
def test_no_pattern_holds_up_who_else_is_served(pattern):
    """They run in the API, where whoever may read policies tries rules of their own."""
    source = json.dumps(
        {"rules": [{"name": "a", "then": "deny", "match": {"arguments": {
            "properties": {"x": {"pattern": pattern}}}}}]}
    )  # fmt: skip
    (rule,) = parse_policy(source).compiled(1).rules
    assert rule.match.arguments is not None
    begun = time.monotonic()
    rule.match.arguments({"x": "a" * 24 + "c" + "a" * 400})
    assert time.monotonic() - begun < 1


def test_policies_that_were_stored_before_are_read():
    schema = {"patternProperties": {"^x": {"pattern": "(?=a)a"}}}
    stored = {"rules": [{"name": "a", "then": "deny", "match": {"arguments": schema}}]}
    (rule,) = read_policy(stored).compiled(1).rules
    assert rule.match.arguments is not None
    assert rule.match.arguments({"x1": "a"}) is None


def test_what_is_the_tenants_is_not_the_agents():
    for source in ("roles: {admin: ['*']}", "max_timeout_s: 3"):
        parse_policy(source)
        with pytest.raises(Invalid, match="tenant's policy"):
            parse_policy(source, for_agent=True)


def test_words_are_words():
    (found,) = parse_policy("rules: [{name: no, then: ask, four_eyes: true}]").rules
    assert (found.name, found.four_eyes) == ("no", True)
    assert parse_policy("rules: [{name: off, then: deny, reason: 2026-01-01}]").rules[0].reason


def test_an_empty_policy_says_nothing():
    assert parse_policy("").compiled(2) == Policy(2)
    assert parse_policy("# later\n").digest() == parse_policy("{}").digest()
