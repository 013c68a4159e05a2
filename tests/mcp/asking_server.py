"""An MCP server over stdio for tests: it counts, asks, dies, floods and changes when it is told to.

    python -I -S asking_server.py --state FILE [--old]

The standard library alone, so that it starts at once; both families of the protocol by hand, which
the servers of `test_real_servers.py` are the check of. `--old` speaks only the one before 2026.
FILE keeps what outlives a process, a line for each effect; and `FILE.tools`, when it is there, is
the description of `look`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

STATE = Path(sys.argv[sys.argv.index("--state") + 1])
CHANGED = STATE.with_suffix(".tools")
OLD = "--old" in sys.argv
FORM = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}},
    "required": ["colour"],
}
ELICIT = {"mode": "form", "message": "Which colour?", "requestedSchema": FORM}
CANCELLED = set()
ANSWERS = {}
ANSWERED = threading.Condition()
WRITING = threading.Lock()


def tool(name, description, **properties):
    schema = {"type": "object", "properties": properties}
    return {"name": name, "description": description, "inputSchema": schema}


def tools():
    look = CHANGED.read_text() if CHANGED.exists() else "Look at something."
    more = [tool("extra", "Came later.")] if CHANGED.exists() else []
    return [
        tool("look", look),
        tool("slow", "Takes a while.", s={"type": "number"}),
        tool("ask", "Asks for a colour before it paints."),
        tool("ask_in_call", "Asks for a colour while it paints."),
        tool("die", "Ends the server in mid-call."),
        tool("fail", "Says that it failed."),
        tool("break", "Answers with an error.", code={"type": "integer"}, message={}),
        tool("flood", "Answers with a lot.", n={"type": "integer"}),
        tool("env", "Shows the environment."),
        tool("spawn", "Leaves a process of its own behind."),
        tool("broken", "Has a schema that is none.", a={"type": 5}),
        tool("odd name!", "Has an odd name."),
        *more,
    ]


class Broken(Exception):
    """The error that a call is answered with."""


def send(message):
    with WRITING:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def note(text):
    with STATE.open("a") as file:
        file.write(text + "\n")


def said(text, **more):
    return {"content": [{"type": "text", "text": text}], "resultType": "complete", **more}


def slow(params, id_):
    note("slow begins")
    for i in range(10):
        token = params["_meta"]["progressToken"]
        progress = {"progressToken": token, "progress": i, "total": 10, "message": f"part {i}"}
        send({"method": "notifications/progress", "params": progress})
        end = time.monotonic() + params["arguments"]["s"] / 10
        while time.monotonic() < end:
            time.sleep(0.01)
            if id_ in CANCELLED:
                note("slow cancelled")
                return None
    note("slow ends")
    return said("done")


def ask(params):
    if "inputResponses" not in params:
        note("asked")
        request = {"method": "elicitation/create", "params": ELICIT}
        state = f"opaque-{os.getpid()}"
        requests = {"colour": request}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": state}
    return painted(params["inputResponses"]["colour"], f" with {params['requestState']}")


def painted(answer, how=""):
    if answer["action"] != "accept":
        return said("nothing painted")
    note(f"painted {answer['content']['colour']}{how}")
    return said(f"painted {answer['content']['colour']}")


def ask_in_call(id_):
    mine = f"q{id_}"
    send({"id": mine, "method": "elicitation/create", "params": ELICIT})
    with ANSWERED:
        ANSWERED.wait_for(lambda: mine in ANSWERS, 60)
    note(f"asked: {ANSWERS[mine]['action']}")
    return painted(ANSWERS[mine])


def call(params, id_):  # noqa: PLR0911 - one for each tool
    match params["name"]:
        case "look":
            note("look")
            return said(f"seen by {os.getpid()}")
        case "slow":
            return slow(params, id_)
        case "ask":
            return ask(params)
        case "ask_in_call":
            return ask_in_call(id_)
        case "die":
            note("die")
            os._exit(9)
        case "fail":
            return said("no luck", isError=True)
        case "flood":
            return said("x" * params["arguments"]["n"])
        case "env":
            return said("\n".join(f"{k}={v}" for k, v in sorted(os.environ.items())))
        case "spawn":
            return said(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
        case name:
            return said(f"called {name}")


def answer(method, params, id_):
    me = {"capabilities": {"tools": {"listChanged": True}}}
    info = {"name": "asking", "version": "1"}
    kept = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    match method:
        case "server/discover" if not OLD:
            return {"supportedVersions": ["2026-07-28"], **me, **kept}
        case "initialize" if OLD:
            return {"protocolVersion": "2025-11-25", "serverInfo": info, **me}
        case "tools/list":
            return {"tools": tools(), **({} if OLD else kept)}
        case "tools/call" if params["name"] == "break":
            raise Broken(params["arguments"])
        case "tools/call":
            found = call(params, id_)
            if OLD and found is not None:
                found.pop("resultType")
            return found
    raise LookupError(method)


def serve(message):
    try:
        result = answer(message["method"], message.get("params") or {}, message["id"])
    except LookupError:
        error = {"code": -32601, "message": "there is no such method"}
        send({"id": message["id"], "error": error})
        return
    except Broken as broken:
        send({"id": message["id"], "error": broken.args[0]})
        return
    if result is not None:
        send({"id": message["id"], "result": result})


for line in sys.stdin:
    message = json.loads(line)
    if "method" not in message:
        with ANSWERED:
            ANSWERS[message["id"]] = message.get("result") or {"action": "error"}
            ANSWERED.notify_all()
    elif "id" in message:
        threading.Thread(target=serve, args=(message,), daemon=True).start()
    elif message["method"] == "notifications/cancelled":
        CANCELLED.add(message["params"]["requestId"])
os._exit(0)
