"""`harness mcp`: servers of the Model Context Protocol, and what is accepted of their tools."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness_api.cli.options import Json, connect, examples, group, pairs
from harness_api.cli.output import clean, print_json, print_pairs, print_table, say, short
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client.types import McpServer, McpTool

app = group("Use tools of MCP servers: declare servers, look at their tools, accept them.")

Name = Annotated[str, typer.Argument(metavar="SERVER", help="A server's name.")]
_PENDING = {"new", "changed", "gone"}


@app.command(
    epilog=examples(
        "harness mcp add time --command 'uvx mcp-server-time' --effect get_current_time=read",
        "harness mcp add tickets --url https://mcp.example.com/mcp "
        "--header 'Authorization=Bearer secret://tickets'",
        "harness mcp add files --command 'npx -y @modelcontextprotocol/server-filesystem /data' "
        "--env DEBUG=1 --timeout 30",
    )
    + "\n\nA tool without --effect is a write: it runs once at most, and is never repeated."
)
def add(  # noqa: PLR0917 - typer wants it so
    name: Annotated[str, typer.Argument(metavar="NAME", help="a-z 0-9 -, at most 32.")],
    command: Annotated[
        str | None, typer.Option(help="A program with arguments, as in a shell. Or --url.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Streamable HTTP. Or --command.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=value or NAME=secret://name; repeatable.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="Name=value, may hold secret://name; repeatable.")
    ] = None,
    effect: Annotated[
        list[str] | None,
        typer.Option(help="TOOL=read, idempotent or write (the default); repeatable."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds that one call may take. Default: 60.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Declare it anew; what was accepted stays.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Declare a server. Its tools are `NAME__tool`; `NAME__*` in an agent means all of them."""
    if (command is None) == (url is None):
        raise Invalid("give exactly one of --command and --url", code="USAGE")
    wanted: dict[str, Any] = {
        "command": shlex.split(command) if command else None,
        "url": url,
        "env": pairs(env or [], "--env"),
        "headers": pairs(header or [], "--header"),
        "effects": pairs(effect or [], "--effect"),
        "timeout_s": timeout,
    }
    with connect() as client:
        put = client.mcp.put if replace else client.mcp.create
        server = put(name, **wanted)
    if as_json:
        print_json(server)
        return
    print(f"{server.name} is declared")
    say(f"look at its tools: harness mcp refresh {server.name}")


@app.command("list")
def list_servers(as_json: Json = False) -> None:
    """List the servers of your tenant."""
    with connect() as client:
        found = list(client.mcp.list())
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("name", "transport", "where", "listed", "last look"),
        [(s.name, s.transport, short(_where(s), 60), s.listed_at, _look(s)) for s in found],
        "No MCP servers. Declare one with `harness mcp add`.",
    )


@app.command()
def show(server: Name, as_json: Json = False) -> None:
    """Show how a server is declared and what the last look at it found."""
    with connect() as client:
        found = client.mcp.get(server)
    if as_json:
        print_json(found)
        return
    _print_server(found)


@app.command(epilog="The exit code is 1 when the server cannot be used.")
def refresh(server: Name, as_json: Json = False) -> None:
    """Let a worker connect to a server and list its tools; shows what waits to be accepted."""
    with connect() as client:
        found = client.mcp.refresh(server)
        tools = list(client.mcp.tools(server))
    if as_json:
        print_json({"server": found, "tools": tools})
    else:
        _print_server(found)
        print()
        _print_tools(server, tools)
    if found.check is None or not found.check.ok:
        raise typer.Exit(1)


@app.command("test", epilog="The exit code is 1 when the server cannot be used.")
def try_out(server: Name, as_json: Json = False) -> None:
    """Let a worker connect to a server, and say whether that works."""
    with connect() as client:
        found = client.mcp.refresh(server)
    if as_json:
        print_json(found)
    else:
        _print_server(found)
    if found.check is None or not found.check.ok:
        raise typer.Exit(1)


@app.command()
def tools(server: Name, as_json: Json = False) -> None:
    """List a server's tools, with the difference of those that have changed."""
    with connect() as client:
        found = list(client.mcp.tools(server))
    if as_json:
        print_json({"data": found})
    else:
        _print_tools(server, found)


@app.command(
    epilog=examples("harness mcp accept tickets", "harness mcp accept tickets search --yes")
)
def accept(
    server: Name,
    tool: Annotated[
        str | None, typer.Argument(metavar="TOOL", help="One tool; without it, all.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Accept what a server lists now. What you accept is exactly what is shown to you."""
    with connect() as client:
        listed = client.mcp.get(server).listed_digest
        found = list(client.mcp.tools(server))
        chosen = [t for t in found if tool is None or tool in {t.name, t.tool}]
        if tool is not None and not chosen:
            raise Invalid(f"{server} lists no tool {tool!r}", code="NOT_FOUND", field="tool")
        pending = [t for t in chosen if t.state in _PENDING]
        if not as_json:
            _print_tools(server, pending)
        if pending and not yes and not as_json:
            typer.confirm("Accept?", abort=True)
        done = client.mcp.accept(
            server, tool, digest=chosen[0].listed_digest if tool is not None else listed
        )
    if as_json:
        print_json(done)
    else:
        print(f"accepted: {', '.join(map(clean, done.accepted)) or 'nothing new'}")


@app.command()
def remove(server: Name, as_json: Json = False) -> None:
    """Remove a server; runs that use its tools are told that they are gone."""
    with connect() as client:
        client.mcp.delete(server)
    if as_json:
        print_json({"server": server, "deleted": True})
    else:
        print(f"{server} is removed")


def _described(tool: McpTool) -> str:
    return str((tool.listed or tool.accepted or {}).get("description") or tool.problem or "")


def _where(server: McpServer) -> str:
    return shlex.join(server.command) if server.command else server.url or ""


def _look(server: McpServer) -> str:
    if server.check is None:
        return "never"
    return "ok" if server.check.ok else f"failed: {server.check.code}"


def _print_server(server: McpServer) -> None:
    check = server.check
    print_pairs(
        {
            "server": server.name,
            "id": server.id,
            "transport": server.transport,
            "where": clean(_where(server)),
            "env": server.env or None,
            "headers": server.headers or None,
            "effects": server.effects or None,
            "timeout": f"{server.timeout_s:g} s" if server.timeout_s else None,
            "listed": server.listed_at,
            "last look": _look(server),
            "at": check.at if check else None,
            "protocol": check.protocol if check else None,
            "is": clean(check.server) if check and check.server else None,
            "took": f"{check.ms:.0f} ms" if check else None,
            "error": clean(check.error) if check and check.error else None,
            "stderr": clean(check.stderr) if check and check.stderr else None,
        }
    )


def _print_tools(server: str, found: list[McpTool]) -> None:
    print_table(
        ("tool", "state", "effect", "description"),
        [
            (
                t.tool, t.state, t.effect,
                short(_described(t), 70),
            )
            for t in found
        ],
        "No tools.",
    )  # fmt: skip
    for tool in found:
        if tool.problem:
            print(f"\n{tool.tool} is refused: {clean(tool.problem)}")
        if tool.diff:
            print(f"\n{tool.tool}:")
            print("\n".join(f"  {clean(line)}" for line in tool.diff))
    if any(t.state in _PENDING for t in found):
        say(f"accept what is new or changed: harness mcp accept {server} [TOOL]")


@app.command(
    epilog=examples(
        "harness mcp serve",
        "HARNESS_API_URL=https://harness.example.com HARNESS_API_KEY=hk_... harness mcp serve",
    )
)
def serve() -> None:
    """Be an MCP server on stdin and stdout: agent clients start this as a program and submit, wait
    for and answer runs. The same tools are at /mcp of the API.
    """
    from contextlib import asynccontextmanager
    from typing import TYPE_CHECKING

    import anyio

    from harness_api.client import AsyncClient
    from harness_api.mcp_face.tools import make_server

    if TYPE_CHECKING:
        from collections.abc import AsyncIterator

    @asynccontextmanager
    async def reach(_: Any) -> AsyncIterator[AsyncClient]:  # noqa: ANN401 - no caller but us
        async with AsyncClient() as client:
            yield client

    anyio.run(make_server(reach).run_stdio_async)
