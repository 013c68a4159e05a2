"""What Spin has to find: which properties hold, and which break once a mechanism is taken out.

A case is one build of a model. `holds` and `breaks` name its `ltl` formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Case:
    """One model with some switches, and what is to come of it."""

    model: str
    switches: tuple[str, ...]
    what: str
    holds: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    """`reached` breaks in the whole model: its counterexample shows that the end can be reached."""

    @property
    def name(self) -> str:
        """Return a name that picks this case."""
        return " ".join((self.model, *self.switches))

    @property
    def whole(self) -> bool:
        """Tell whether every mechanism is in place (only the bounds may differ)."""
        return all("=" in switch for switch in self.switches)


PROGRESS: Final = frozenset({"inv8"})
"""Searched for cycles, under weak fairness."""

CASES: Final = (
    # ownership.pml
    Case("ownership", (), "the whole model", ("inv2", "inv6", "inv7"), ("reached",)),
    Case("ownership", ("FAULTS=2",), "the whole model", ("inv8",)),
    Case("ownership", ("NO_CLAIM_ID", "FAULTS=2"), "no claim id compared", ("inv2",), ("inv6",)),
    Case(
        "ownership",
        ("FENCE_ONLY",),
        "no claim id; each clearing raises the fence",
        breaks=("inv6",),
    ),
    Case(
        "ownership",
        ("FENCE_ONLY", "NO_PG_CRASH", "FAULTS=2"),
        "the same, and Postgres forgets nothing",
        ("inv2", "inv6"),
    ),
    Case("ownership", ("NO_CLAIM_ID", "NO_VERSION"), "fence alone compared", breaks=("inv2",)),
    Case(
        "ownership",
        ("NO_CLAIM_ID", "NO_FENCE", "NO_VERSION"),
        "no compare-and-set",
        breaks=("inv2", "inv6"),
    ),
    Case(
        "ownership",
        ("NO_FENCE", "FAULTS=2"),
        "no fence compared: the claim id does",
        ("inv2", "inv6"),
    ),
    Case(
        "ownership",
        ("NO_VERSION", "FAULTS=2"),
        "no version compared: the claim id does",
        ("inv2", "inv6"),
    ),
    Case("ownership", ("REDIS_TOKEN",), "the fence comes from Redis", breaks=("inv6",)),
    Case("ownership", ("CLAIM_TAKES_OVER",), "the lease alone allows a claim", breaks=("inv7",)),
    Case("ownership", ("NO_REAPER",), "no reaper", breaks=("inv8",)),
    Case("ownership", ("NO_GIVE_BACK",), "no heartbeat compares claims", breaks=("inv8",)),
    Case("ownership", ("LEASE_FOR_EVER",), "the lease has no expiry", breaks=("inv8",)),
    Case("ownership", ("NO_WAKE",), "nothing rings again", breaks=("inv8",)),
    Case("ownership", ("NO_WAKE", "FAULTS=0"), "nothing rings again, no fault", ("inv8",)),
    Case(
        "ownership",
        ("NO_WAKE", "FAULTS=0", "RING_FIRST"),
        "the same, ring before release",
        breaks=("inv8",),
    ),
    Case("ownership", ("RING_FIRST", "FAULTS=1"), "ring before release, rung again", ("inv8",)),
    # effects.pml
    Case(
        "effects",
        (),
        "the whole model",
        (
            *("inv3", "inv4", "inv6", "inv9"),
            *("cancel_wins", "own_result", "result_stays", "attempt_kept"),
        ),
        ("reached",),
    ),
    Case("effects", ("FAULTS=2",), "the whole model", ("inv8",)),
    Case("effects", ("NO_INTENT",), "no intent before the effect", breaks=("inv3",)),
    Case("effects", ("GUESS",), "a dead intent is tried again", breaks=("inv3",)),
    Case(
        "effects",
        ("INTENT_WITHOUT_OWNER", "FAULTS=2"),
        "the intent compares the ledger only",
        ("inv3",),
        ("inv6",),
    ),
    Case(
        "effects",
        ("INTENT_WITHOUT_LEDGER", "FAULTS=2"),
        "the intent compares the owner only",
        ("inv3",),
    ),
    Case(
        "effects",
        ("INTENT_WITHOUT_OWNER", "INTENT_WITHOUT_LEDGER"),
        "the intent compares nothing",
        breaks=("inv3", "result_stays"),
    ),
    Case("effects", ("INTENT_AFTER_CANCEL",), "the intent ignores a cancel", breaks=("inv9",)),
    Case(
        "effects",
        ("RESULT_OF_ANY_ATTEMPT",),
        "the result does not compare its attempt",
        breaks=("own_result",),
    ),
    Case(
        "effects",
        ("UNKNOWN_ALWAYS",),
        '"unknown" does not compare the status',
        breaks=("result_stays",),
    ),
    Case(
        "effects",
        ("GIVE_UP_WHATEVER_RUNS", "FAULTS=2"),
        "recovery gives up a later attempt too",
        ("inv3",),
        ("attempt_kept",),
    ),
    Case(
        "effects",
        ("COMMIT_IGNORES_CANCEL",),
        "the commit ignores a cancel",
        breaks=("cancel_wins",),
    ),
    Case("effects", ("CANCEL_WITHOUT_LOCK",), "the cancel takes no row lock", breaks=("inv4",)),
    Case("effects", ("WAIT_FOR_RESULT",), "a dead intent never becomes unknown", breaks=("inv8",)),
    # inputs.pml
    Case(
        "inputs",
        (),
        "the whole model",
        ("inv5", "cancel_wins", "inv20", "inputs_seen", "inv10", "inv8"),
        ("reached",),
    ),
    Case("inputs", ("NO_RETRY",), "an input refuses the commit for good", breaks=("inv20",)),
    Case("inputs", ("NO_INPUT_COMPARE",), "the commit ignores inputs", breaks=("inputs_seen",)),
    Case("inputs", ("NO_CANCEL_COMPARE",), "the commit ignores a cancel", breaks=("cancel_wins",)),
    Case("inputs", ("NO_READ_BACK",), "a lost reply is taken for a refusal", breaks=("inv10",)),
    Case(
        "inputs",
        ("TAKE_REFUSAL_FOR_SUCCESS",),
        "a refusal is taken for a lost reply",
        breaks=("inv10",),
    ),
    Case(
        "inputs",
        ("SEQ_READ_BEFORE_LOCK",),
        "event numbers are read before the lock",
        breaks=("inv5",),
    ),
    Case("inputs", ("NO_REAPER",), "no reaper", breaks=("inv8",)),
)
