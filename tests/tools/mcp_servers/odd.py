"""An MCP server written by hand that does what no SDK lets one do: `odd.py KIND`."""

import json
import os
import subprocess
import sys
import time

TOOLS = [{"name": "go", "inputSchema": {"type": "object"}}]


def say(body: object) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Do what is odd about this kind."""
    kind = sys.argv[1]
    if kind == "silent":
        time.sleep(600)
    if kind == "rubbish":
        sys.stdout.write("no JSON here\n" * 200_000)
        time.sleep(600)
    if kind == "dies":
        sys.exit(" ".join(["no such thing, secret-of-mine", *sys.argv[2:]]))
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked:
            answer(kind, asked)
    if kind == "stays":
        time.sleep(600)


def answer(kind: str, asked: dict) -> None:
    """Answer one request."""
    said: object = {}
    if asked["method"] == "initialize":
        said = {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        said = {"tools": tools(kind)}
    elif asked["method"] == "tools/call":
        call(kind)
        said = {"content": [{"type": "text", "text": "went"}]}
        if kind == "unreadable":
            say({"jsonrpc": "2.0", "id": asked["id"], "result": {"content": [], "x": float("nan")}})
            return
        if kind == "pattern":
            said = {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}
    say({"jsonrpc": "2.0", "id": asked["id"], "result": said})


def tools(kind: str) -> list:
    """List tools."""
    if kind == "names":
        odd = ["a b", "a_b", "x" * 90, "é", "huge"]
        schemas = {"huge": {"type": "object", "description": "y" * 70_000}}
        return [{"name": name, "inputSchema": schemas.get(name, {"type": "object"})} for name in odd]
    if kind == "pattern":
        shape = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
        return [{**TOOLS[0], "outputSchema": shape}]
    return TOOLS


def call(kind: str) -> None:
    """Do something before the answer."""
    ODD.get(kind, lambda: None)()


def flood() -> None:
    """Send notifications for ever."""
    while True:
        sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n' * 1000)


def ask_much() -> None:
    """Ask more than anybody should."""
    for number in range(5_000):
        say({"jsonrpc": "2.0", "id": f"q{number}", "method": "roots/list"})
    time.sleep(600)


def answer_much() -> None:
    """Answer what nobody asked."""
    for number in range(200_000):
        say({"jsonrpc": "2.0", "id": number + 10_000, "result": {}})
    time.sleep(600)


def write_one_line() -> None:
    """Send one endless message."""
    sys.stdout.write("x" * (64 * 1024 * 1024))
    sys.stdout.flush()
    time.sleep(600)


def turn_deaf() -> None:
    """Read nothing any more, unless a note says otherwise."""
    with open(os.environ["NOTES"], "a+") as file:
        file.seek(0)
        hears = "hear" in file.read()
        file.write("deaf")
    if not hears:
        time.sleep(600)


def leave_a_child() -> None:
    """Start a process and note its number."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["NOTES"], "w") as file:
        file.write(str(child.pid))


ODD = {
    "floods": flood,
    "asks": ask_much,
    "answers": answer_much,
    "one line": write_one_line,
    "deaf": turn_deaf,
    "always dies": lambda: os._exit(1),
    "forks": leave_a_child,
}


if __name__ == "__main__":
    main()
