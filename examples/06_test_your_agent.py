"""Test your own agent without a model: `ScriptedModel` says what the model would, and keeps what it was sent.

python examples/06_test_your_agent.py        (or: pytest examples/06_test_your_agent.py)
"""

import tempfile
from typing import Any

import retinue
from retinue.testing.scripted import ScriptedModel


@retinue.tool
def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return {"bolts": "12", "nuts": "none"}.get(item) or f"There is no item {item!r}."


def agent(question: str, model: Any, folder: str) -> retinue.TurnResult:
    """The agent under test: in production `model` is a name like "openai:NAME"."""
    return retinue.run(question, model=model, data_dir=folder, cwd=folder, tools_from=(stock,))


def played(*lines: dict[str, Any]) -> tuple[retinue.TurnResult, ScriptedModel]:
    model = ScriptedModel(lines)
    with tempfile.TemporaryDirectory() as folder:
        return agent("How many bolts are there?", model, folder), model


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def test_the_model_gets_what_the_tool_says() -> None:
    result, model = played(call("stock", item="bolts"), {"text": "Twelve."})
    assert (result.status, result.text) == ("completed", "Twelve.")
    assert model.requests[-1].messages[-1].text == "12"


def test_a_child_has_the_tool_too_and_its_answer_comes_home() -> None:
    spawn = {"agent": "parent", **call("spawn_agent", prompt="Count the bolts.", mode="await")}
    child = ({"agent": "child", **call("stock", item="bolts")}, {"agent": "child", "text": "I count 12."})
    result, model = played(spawn, *child, {"agent": "parent", "text": "Twelve, says the child."})
    assert result.text == "Twelve, says the child."
    assert "I count 12." in model.requests[-1].messages[-1].text


def test_a_provider_that_fails_is_never_a_success() -> None:
    result, _ = played({"text": "Twel", "finish": "incomplete"}, {"error": "gone"})
    assert (result.status, result.text, result.partial) == ("failed", None, "Twel")


if __name__ == "__main__":
    for test in [value for name, value in globals().items() if name.startswith("test_")]:
        test()
        print(f"holds: {test.__name__.removeprefix('test_').replace('_', ' ')}")
