"""Facts and their wire form: they survive the wire, and the flat object has SHAPES' keys."""

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from retinue.core.events import AnyFact, Draft, Event, Usage, tag_of
from retinue.core.ids import Position, Seq, SessionId
from retinue.core.run import PUBLIC, Run
from retinue.testing import samples

ENVELOPE = ["type", "session_id", "seq", "position", "time", "v"]
FACTS = {tag_of(fact): fact for fact in samples.every_fact()}
# SHAPES, Run, word for word.
RUN = """
run_id, session_id, parent_id, root_id, root_run_id, call_id, name, agent, model, depth, provider, status, reason,
detail, waiting_for, queue_position, steps, usage, created_at, started_at, ended_at, queued_s, elapsed_s, access, paths,
cwd, continuable, output, output_cut, output_id, partial, files, result_state
"""
RUN_KEYS = re.findall(r"\w+", RUN)
# Parts of the table that this version does not write: approvals, file writes, claims.
NOT_YET = {
    "approval.asked",
    "approval.closed",
    "file.written",
    "claim.taken",
    "claim.freed",
}
OURS = {"run.waiting", "run.resumed", "context.seeded", "context.compacting", "session.deleted"}
"""Types beside the table; clients ignore types that they do not know."""


def promised() -> dict[str, list[str]]:
    """SHAPES, Events: the fields of each type. Several types of a row have their fields parted by ` / `."""
    found: dict[str, list[str]] = {}
    page = (Path(__file__).parents[2] / "docs" / "shapes.md").read_text(encoding="utf-8")
    table = page.partition("| type | fields |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        first, text = (cell.strip() for cell in line.strip("|").split(" | ", 1))
        types = re.findall(r"`([\w.]+)`", first)
        if types[0].startswith("run."):
            keys = ["child_id" if key == "session_id" else key for key in RUN_KEYS]
            found.update(dict.fromkeys(types, keys))
            continue
        plain = re.sub(r"\([^)]*\)|\[[^]]*\]|.*root's log: |main session only: ", "", text)
        shares = plain.split(" / ") if " / " in plain else [plain] * len(types)
        for kind, share in zip(types, shares, strict=True):
            found[kind] = re.findall(r"[a-z_]+", share)
    return found


def event(fact: Any) -> Event:
    return Event(
        session_id=SessionId("s_1"),
        root_id=SessionId("s_root"),
        seq=Seq(3),
        position=Position(9),
        time="2025-01-01T00:00:00.000Z",
        fact=fact,
    )


def test_the_samples_hold_every_type_once() -> None:
    assert [type(fact) for fact in samples.every_fact()] == list(get_args(AnyFact))


def test_the_types_are_those_of_the_contract() -> None:
    assert set(FACTS) - OURS == set(promised()) - NOT_YET


@pytest.mark.parametrize("kind", sorted(set(FACTS) - OURS))
def test_the_flat_form_has_the_contracts_keys(kind: str) -> None:
    wire = event(FACTS[kind]).to_dict()
    assert list(wire)[: len(ENVELOPE)] == ENVELOPE
    assert (wire["type"], wire["session_id"], wire["seq"], wire["position"], wire["v"]) == (kind, "s_1", 3, 9, 1)
    missing = set(promised()[kind]) - set(wire)
    assert not missing


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_no_field_of_a_fact_hides_one_of_the_envelope(kind: str) -> None:
    assert not set(FACTS[kind].__struct_fields__) & set(ENVELOPE)


@pytest.mark.parametrize("kind", sorted(FACTS))
def test_every_fact_survives_the_wire(kind: str) -> None:
    fact = FACTS[kind]
    raw = msgspec.json.encode(fact)
    assert msgspec.json.decode(raw, type=AnyFact) == fact
    assert msgspec.json.decode(raw)["type"] == kind
    whole = event(fact)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Event) == whole


def test_facts_are_frozen() -> None:
    draft = Draft(session_id=SessionId("s_1"), fact=FACTS["warning"])
    for value in (*FACTS.values(), draft):
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], None)


def test_a_run_shows_exactly_the_contracts_keys_in_order() -> None:
    run: Run = samples.run(1)
    assert list(run.to_dict()) == RUN_KEYS == list(PUBLIC)


def test_usage_is_summed_field_by_field() -> None:
    one = Usage(input=1, cached=2, output=3, reasoning=4, total=5, requests=6, unreported=7)
    two = Usage(input=10, cached=20, output=30, reasoning=40, total=50, requests=60, unreported=70)
    expected = Usage(input=11, cached=22, output=33, reasoning=44, total=55, requests=66, unreported=77)
    assert one.plus(two) == two.plus(one) == expected
    assert one.plus(Usage()) == one
