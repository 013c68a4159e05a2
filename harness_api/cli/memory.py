"""`harness memory`: what agents remember between runs."""

from __future__ import annotations

from typing import Annotated

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import clean, print_json, print_pairs, print_table, short
from harness_common.core.errors import Invalid

app = group("What agents remember between runs: see it, correct it, delete it.")

Namespace = Annotated[
    str, typer.Option("--namespace", "-a", help="An agent's name, or one that agents share.")
]
AnyNamespace = Annotated[
    str | None, typer.Option("--namespace", "-a", help="An agent's name, or one agents share.")
]
User = Annotated[
    str | None, typer.Option("--user", "-u", help="Whose; an empty text for runs of no user.")
]
MemoryId = Annotated[str, typer.Argument(metavar="MEMORY", help="A fact's id: mem_…")]


@app.command("list", epilog=examples("harness memory list -a analyst --user ann"))
def list_memories(
    namespace: AnyNamespace = None,
    user: User = None,
    shared: Annotated[
        bool | None, typer.Option("--shared/--not-shared", help="Only what all users see, or not.")
    ] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List facts, newest first."""
    with connect() as client:
        found = list(client.memories.list(limit, namespace, user, shared))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "namespace", "user", "kind", "trust", "text", "saved", "until"),
        [
            (
                m.id, m.namespace, "(all)" if m.shared else m.user_id, m.kind, m.trust,
                short(m.text), m.created_at, m.expires_at,
            )
            for m in found
        ],
        "Nothing is remembered. Agents need `memory_save` among their tools; or use "
        "`harness memory save`.",
    )  # fmt: skip


@app.command(epilog=examples("harness memory search 'which currency?' -a analyst --user ann"))
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    namespace: Namespace,
    user: User = None,
    limit: Limit = 10,
    as_json: Json = False,
) -> None:
    """Find facts by words and by meaning, as an agent does."""
    with connect() as client:
        found = client.memories.search(namespace, query, user, limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ("id", "score", "by", "trust", "text"),
        [(m.id, f"{m.score:.4f}", m.by, m.trust, short(m.text)) for m in found.data],
        "Nothing fits.",
    )


@app.command(
    epilog=examples(
        "harness memory save 'Invoices are in euros' -a analyst --user ann --kind preference",
        "harness memory save 'Reports are in English' -a analyst --shared --kind instruction",
    )
)
def save(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A sentence (500 characters).")],
    namespace: Namespace,
    user: User = None,
    shared: Annotated[bool, typer.Option("--shared", help="For all users of it.")] = False,
    kind: Annotated[
        str, typer.Option("--kind", help="preference, fact, decision or instruction.")
    ] = "fact",
    days: Annotated[int | None, typer.Option("--days", min=1, help="Forget it after so many.")] = (
        None
    ),
    as_json: Json = False,
) -> None:
    """Keep a fact by hand."""
    with connect() as client:
        made = client.memories.save(
            namespace, text, user, kind=kind, shared=shared, expires_days=days
        )
    if as_json:
        print_json(made)
    else:
        print(f"{made.id} is remembered")


@app.command()
def show(memory_id: MemoryId, as_json: Json = False) -> None:
    """Show a fact and where it comes from."""
    with connect() as client:
        found = client.memories.get(memory_id)
    if as_json:
        print_json(found)
        return
    print(clean(found.text))
    print_pairs(
        {
            "id": found.id, "namespace": found.namespace,
            "user": "(all)" if found.shared else found.user_id, "kind": found.kind,
            "trust": found.trust, "saved": found.created_at, "until": found.expires_at,
            "provenance": found.provenance,
        }
    )  # fmt: skip


@app.command(
    epilog=examples(
        "harness memory forget mem_0193…",
        "harness memory forget --user ann --yes",
        "harness memory forget -a analyst --query 'old address' --dry-run",
    )
)
def forget(
    memory_id: Annotated[str | None, typer.Argument(metavar="[MEMORY]")] = None,
    namespace: AnyNamespace = None,
    user: User = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", help="Those that hold all of these words.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete facts for good: one by its id, or all of a user, a namespace, or with some words."""
    with connect() as client:
        if memory_id is not None:
            client.memories.forget(memory_id)
            print_json({"count": 1}) if as_json else print(f"{memory_id} is forgotten")
            return
        if namespace is None and user is None and query is None:
            raise Invalid(
                "say which: an id, --user, --namespace or --query", code="USAGE", field="MEMORY"
            )
        count = client.memories.forget_all(namespace, user, query, dry_run=True)
        if not dry_run and count.count:
            if not yes:
                typer.confirm(f"Delete {_number(count.count, more=count.more)} for good?",
                              abort=True, err=True)  # fmt: skip
            count = client.memories.forget_all(namespace, user, query)
    if as_json:
        print_json(count)
    else:
        done = "would be forgotten" if dry_run else "forgotten"
        print(f"{_number(count.count, more=count.more)} {done}")


def _number(count: int, *, more: bool) -> str:
    return f"{count}{' (and more: repeat it)' if more else ''} {'fact' if count == 1 else 'facts'}"
