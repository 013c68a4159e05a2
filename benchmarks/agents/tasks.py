"""The thirty tasks: retrieval, data work, orchestration. Each is a plan of calls whose arguments
may depend on earlier results, and the answer that comes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.agents import tools

Json = Any
Results = Mapping[int, Json]
"""What the calls of a plan gave, by their place in it."""
Arguments = Mapping[str, Json] | Callable[[Results], Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a plan."""

    tool: str
    arguments: Arguments

    def made(self, results: Results) -> dict[str, Json]:
        """Return the arguments, once the results they need are there."""
        return dict(self.arguments(results) if callable(self.arguments) else self.arguments)


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked, how it is done, and what comes of it."""

    id: str
    kind: str
    question: str
    rounds: tuple[tuple[Call, ...], ...]
    """Calls of one round are asked for in one answer."""
    answer: Callable[[Results], str]

    @property
    def calls(self) -> tuple[Call, ...]:
        """List the calls of all rounds in order: their place is their number."""
        return tuple(call for one in self.rounds for call in one)

    @property
    def prompt(self) -> str:
        """Return what the agent is given."""
        return f"[task {self.id}] {self.question}"

    def truth(self) -> tuple[str, tuple[str, ...]]:
        """Work the task out without any system: the right answer, and the effects, each once."""
        results: dict[int, Json] = {}
        effects: list[str] = []
        for n, call in enumerate(self.calls):
            arguments = call.made(results)
            results[n] = tools.compute(call.tool, arguments)
            if call.tool in tools.WRITES:
                effects.append(tools.effect(self.id, call.tool, arguments))
        return self.answer(results), tuple(effects)


def _lookup(n: int, topic: str) -> Task:
    """Search, read two documents side by side, answer from both."""
    return Task(
        f"r{n:02}",
        "retrieval",
        f"What do our documents say about {topic}? Read the two best and quote their codes.",
        (
            (Call("search_docs", {"query": topic}),),
            (
                Call("read_doc", lambda r: {"id": r[0][0]}),
                Call("read_doc", lambda r: {"id": r[0][1]}),
            ),
        ),
        lambda r: f"{topic}: {r[1]['code']} and {r[2]['code']}",
    )


def _report(n: int, region: str, months: Sequence[str]) -> Task:
    """Read sales of some months one after another, add them up, send a report."""
    reads = tuple((Call("query_sales", {"region": region, "month": m}),) for m in months)
    last = len(months)

    def total(r: Results) -> int:
        return sum(int(r[i]["amount"]) for i in range(last))

    return Task(
        f"d{n:02}",
        "data",
        f"Add up the sales of {region} for {', '.join(months)} and send the report.",
        (
            *reads,
            (Call("add", lambda r: {"numbers": [r[i]["amount"] for i in range(last)]}),),
            (Call("send_report", lambda r: {"title": f"{region} sales", "total": r[last]}),),
        ),
        lambda r: f"{region}: {total(r)}, report {r[last + 1]['id']}",
    )


def _orders(n: int, customer: str, amount: int) -> Task:
    """Find a customer's orders, look at each, refund one, open a ticket: two effects in order."""
    return Task(
        f"o{n:02}",
        "orchestration",
        f"Refund {amount} to {customer} for the late order and open a ticket about it.",
        (
            (Call("list_orders", {"customer": customer}),),
            (
                Call("order_details", lambda r: {"order": r[0][0]}),
                Call("order_details", lambda r: {"order": r[0][1]}),
                Call("order_details", lambda r: {"order": r[0][2]}),
            ),
            (Call("refund", lambda r: {"order": _late(r), "amount": amount}),),
            (Call("create_ticket", lambda r: {"about": _late(r), "refund": r[4]["id"]}),),
        ),
        lambda r: f"refund {r[4]['id']}, ticket {r[5]['id']}",
    )


def _late(r: Results) -> str:
    return next(str(r[i]["order"]) for i in (1, 2, 3) if r[i]["late"])


_TOPICS: Final = (
    "leave", "travel", "security", "onboarding", "backups", "pricing", "support", "hardware",
    "privacy", "releases",
)  # fmt: skip
_REGIONS: Final = ("north", "south", "east", "west", "centre")
_CUSTOMERS: Final = (
    "ada", "bo", "chen", "dara", "eli", "fay", "gus", "hana", "ivo", "june",
)  # fmt: skip

TASKS: Final[tuple[Task, ...]] = (
    *(_lookup(n, topic) for n, topic in enumerate(_TOPICS, 1)),
    *(_report(n, region, ("jan", "feb", "mar")) for n, region in enumerate(_REGIONS, 1)),
    *(
        _report(n, region, ("apr", "may", "jun", "jul", "aug", "sep"))
        for n, region in enumerate(_REGIONS, 6)
    ),
    *(_orders(n, customer, 10 + n) for n, customer in enumerate(_CUSTOMERS, 1)),
)
BY_ID: Final[dict[str, Task]] = {task.id: task for task in TASKS}
