"""One way to break each lint rule: the rule's code and a module that breaks it; nothing here is ever run."""

HEAD = '"""A module that owns one mistake and never runs."""\n\n'


def _function(body: str, *, head: str = "def broken() -> None:", before: str = "") -> str:
    lines = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    return f'{HEAD}{before}{head}\n    """Break a rule."""\n{lines}\n'


def _many(line: str, count: int) -> str:
    return "\n".join(line.format(n=n) for n in range(count))


_BRANCHES = _many("if x == {n}:\n    print()", 13)

LINT: dict[str, str] = {
    "E501": f"{HEAD}X = '{'x' * 120}'\n",
    "W291": f"{HEAD}X = 1 \n",
    "F401": f"{HEAD}import json\n",
    "I001": f"{HEAD}import typing\nimport json\n",
    "UP035": f"{HEAD}from typing import Callable\n",
    "B006": _function("del x", head="def broken(x: list[int] = []) -> None:"),
    "C408": f"{HEAD}X = dict()\n",
    "C901": _function(_BRANCHES, head="def broken(x: int) -> None:"),
    "SIM103": _function("if x:\n    return True\nreturn False", head="def broken(x: int) -> bool:"),
    "RET505": _function("if x:\n    return 1\nelse:\n    return 2", head="def broken(x: int) -> int:"),
    "PIE790": _function("pass"),
    "PERF401": _function(
        "y = []\nfor n in x:\n    y.append(n + 1)\nreturn y", head="def broken(x: list[int]) -> list[int]:"
    ),
    "ASYNC251": _function("time.sleep(1)", head="async def broken() -> None:", before="import time\n\n\n"),
    "BLE001": _function("try:\n    print()\nexcept Exception:\n    print()"),
    "DTZ005": _function("datetime.datetime.now()", before="import datetime\n\n\n"),
    "G004": _function('logging.info(f"{x}")', head="def broken(x: int) -> None:", before="import logging\n\n\n"),
    "ISC001": f"{HEAD}X = 'a' 'b'\n",
    "N801": f'{HEAD}class broken:\n    """A class."""\n',
    "PGH003": f"{HEAD}X: int = 1  # type: " + "ignore\n",
    "RUF005": f"{HEAD}Y = [1]\nX = [2] + Y\n",
    "RUF006": _function(
        "asyncio.create_task(x())", head="async def broken(x: object) -> None:", before="import asyncio\n\n\n"
    ),
    "RUF100": f"{HEAD}X = 1  # no" + "qa: F401\n",
    "S101": _function("assert x", head="def broken(x: int) -> None:"),
    "S301": _function("pickle.loads(x)", head="def broken(x: bytes) -> None:", before="import pickle\n\n\n"),
    "SLF001": _function("x._y()", head="def broken(x: object) -> None:"),
    "T201": _function("print()"),
    "TC006": f"{HEAD}import typing\n\nX = typing.cast(int, 1)\n",
    "TID252": f"{HEAD}from . import ids\n",
    "TRY300": _function(
        "try:\n    print()\n    return 1\nexcept ValueError:\n    return 2", head="def broken() -> int:"
    ),
    "D103": f"{HEAD}def broken() -> None:\n    print()\n",
    "D417": f'{HEAD}def broken(x: int, y: int) -> None:\n    """Break.\n\n    Args:\n        x: one\n    """\n',
    "ANN201": f'{HEAD}def broken():\n    """Break a rule."""\n',
    "ARG001": _function("print()", head="def broken(x: int) -> None:"),
    "ERA001": f"{HEAD}# x = print(1)\n",
    "FBT001": _function("del x", head="def broken(x: bool) -> None:"),
    "PLR0911": _function(_many("if x == {n}:\n    return {n}", 7) + "\nreturn 9", head="def broken(x: int) -> int:"),
    "PLR0912": _function(_BRANCHES, head="def broken(x: int) -> None:"),
    "PLR0913": _function(
        "del a, b, c, d, e, f, g", head=f"def broken({', '.join(f'{n}: int' for n in 'abcdefg')}) -> None:"
    ),
    "PLR0914": _function(_many("x{n} = {n}", 16)),
    "PLR0915": _function(_many("print({n})", 51)),
}

BANNED: dict[str, str] = {
    "time.time": "import time\n\nX = time.time()\n",
    "time.time by name": "from time import time\n\nX = time()\n",
    "datetime.now": "import datetime\n\nX = datetime.datetime.now(tz=datetime.UTC)\n",
    "random": "import random\n\nX = random.Random(1)\n",
    "uuid4": "import uuid\n\nX = uuid.uuid4()\n",
    "asyncio.sleep": "import asyncio\n\nX = asyncio.sleep(1)\n",
    "asyncio.create_task": "import asyncio\n\nX = asyncio.create_task(None)\n",
}
