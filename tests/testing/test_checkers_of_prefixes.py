"""The rule of beginnings passes requests that only grow, and names each that does not; it knows when it cannot say."""

from typing import Any

import msgspec
import pytest

from retinue.core.events import AnyFact, Event, PolicyChanged, SwitchChanged
from retinue.core.ids import SessionId
from retinue.ports import AssistantText, ModelRequest, RequestMessage, ToolSchema, UserText
from retinue.testing import samples
from retinue.testing.checkcontext import check_prefixes
from retinue.testing.fakes import Seen
from tests.core.test_lost_and_compacted import NOTES

TALK: tuple[RequestMessage, ...] = (UserText(text="go"), AssistantText(text="one"), UserText(text="more"))
CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"messages": TALK[1:]}, "request 2 of s_root does not begin with the 2 messages of the one before"),
    ({"system": "you are another"}, "request 2 of s_root has another system text"),
    ({"tools": ()}, ""),
    ({"tools": ("grep",)}, "request 2 of s_root has other tools, or in another order"),
    ({"tools": ("grep", "read_file")}, "request 2 of s_root has other tools, or in another order"),
    ({"tools": ("read_file", "grep", "wait_agent")}, ""),
]


def request(number: int = 1, **fields: Any) -> ModelRequest:
    names = fields.pop("tools", ("read_file", "grep"))
    tools = tuple(ToolSchema(name=name, description=name, parameters={}) for name in names)
    given = {"messages": TALK[: number + 1], "system": "you are one", **fields}
    return ModelRequest(session_id=samples.ROOT, name="main", root=True, model="m", number=number, tools=tools, **given)


def log_of(*facts: AnyFact) -> list[Event]:
    numbering = samples.Numbering()
    return [numbering.event(fact) for fact in (samples.opened(), *facts)]


def test_requests_that_go_on_have_no_problem() -> None:
    assert check_prefixes(log_of(), [request(), request(2), Seen(request=request(2))]) == []


@pytest.mark.parametrize(("fields", "problem"), CHANGES)
def test_a_request_that_begins_otherwise_is_named(fields: dict[str, Any], problem: str) -> None:
    assert check_prefixes(log_of(), [request(), request(2, **fields)]) == ([problem] if problem else [])


def test_tools_that_come_back_after_a_step_without_any_are_those_of_before() -> None:
    assert check_prefixes(log_of(), [request(), request(2, tools=()), request(2)]) == []
    (problem,) = check_prefixes(log_of(), [request(), request(2, tools=()), request(2, tools=("grep",))])
    assert "other tools" in problem


@pytest.mark.parametrize("fact", [PolicyChanged(changes={}), SwitchChanged(on=False)])
def test_who_changes_policy_or_switch_changes_what_is_told_but_no_message(fact: AnyFact) -> None:
    told = [problem for _, problem in CHANGES if problem]
    found = [check_prefixes(log_of(fact), [request(), request(2, **fields)]) for fields, _ in CHANGES]
    assert [problem for problems in found for problem in problems] == told[:1]


def test_sessions_are_compared_with_themselves_only() -> None:
    other = msgspec.structs.replace(request(2, system="you are another"), session_id=SessionId("s_2"))
    assert check_prefixes(log_of(), [request(), other, request(2)]) == []


def test_a_compaction_begins_anew() -> None:
    assert check_prefixes(log_of(NOTES), [request(), request(2, messages=TALK[1:], system="new")]) == []
