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
        sys.exit("no such thing, secret-of-mine")
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
    say({"jsonrpc": "2.0", "id": asked["id"], "result": said})


def tools(kind: str) -> list:
    """List tools."""
    if kind == "names":
        odd = ["a b", "a_b", "x" * 90, "é", "huge"]
        schemas = {"huge": {"type": "object", "description": "y" * 70_000}}
        return [{"name": name, "inputSchema": schemas.get(name, {"type": "object"})} for name in odd]
    return TOOLS


def call(kind: str) -> None:
    """Do something before the answer."""
    if kind == "floods":
        while True:
            sys.stdout.write('{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n' * 1000)
    if kind == "one line":
        sys.stdout.write("x" * (64 * 1024 * 1024))
        sys.stdout.flush()
        time.sleep(600)
    if kind == "always dies":
        os._exit(1)
    if kind == "forks":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sys.stderr.write(f"child {child.pid}\n")
        sys.stderr.flush()
        with open(os.environ["NOTES"], "w") as file:
            file.write(str(child.pid))


if __name__ == "__main__":
    main()
