"""The search that runs in a process of its own, so that a pattern can be stopped; it opens no file.

It is sent as source text to a bare interpreter: it may import nothing of this package. It reads one JSON job
`{"pattern", "ignore_case", "limit", "cpu_s", "texts"}` from its input and prints, as it finds them, lines of
`number-of-text number-of-line start end`; a pattern it cannot use is one line `! reason`.
"""

import importlib
import json
import re
import sys
from typing import Any


def main() -> None:
    """Search the texts of one job."""
    job: dict[str, Any] = json.load(sys.stdin)
    _limit_cpu(job["cpu_s"])
    try:
        pattern: re.Pattern[str] = re.compile(job["pattern"], re.IGNORECASE if job["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError) as error:
        _print("! " + str(error).encode("ascii", "replace").decode())
        return
    left: int = job["limit"]
    for number, text in enumerate(job["texts"]):
        for at, line in enumerate(text.split("\n"), start=1):
            found = pattern.search(line)
            if found:
                _print(f"{number} {at} {found.start()} {found.end()}")
                left -= 1
                if left <= 0:
                    return


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _limit_cpu(seconds: int) -> None:
    """End this process by itself when whoever started it is gone and can no longer stop it."""
    if sys.platform != "win32":
        resource = importlib.import_module("resource")
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


if __name__ == "__main__":
    main()
