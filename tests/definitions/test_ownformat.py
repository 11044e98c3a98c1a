"""A definition shown as our own format means the same when it is read again, whatever its fields hold."""

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.events import Snapshot
from retinue.core.ids import Digest
from retinue.definitions.catalog import Catalog, freeze
from retinue.definitions.fields import read_fields
from retinue.definitions.frontmatter import read_document
from retinue.definitions.gathering import Terms
from retinue.definitions.modelnames import model_name
from retinue.definitions.ownformat import shown_as_own

TOOLS = ("read_file", "list_dir", "grep", "mcp__db__query", "mcp__db__*")
CHARS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORD = st.text(CHARS, min_size=1, max_size=12).map(str.strip).filter(bool)
NAME = st.from_regex(r"[A-Za-zäß0-9_][\w.-]{0,12}", fullmatch=True, alphabet=st.characters(max_codepoint=0x24F))
LABELS = st.lists(WORD.filter(lambda word: word.lower() not in ("*", "all")), max_size=3, unique=True).map(tuple)
SCHEMA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CHARS, max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(CHARS, max_size=6), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    body = draw(st.text(CHARS, max_size=60)).replace("\r", "").strip("\n")
    denied = draw(st.lists(st.sampled_from(["shell", "web_fetch", "mcp__x__y"]), max_size=2, unique=True))
    values: dict[str, Any] = {
        "name": draw(NAME),
        "description": draw(WORD),
        "instructions": body,
        "model": draw(st.none() | st.sampled_from(["openai:gpt-5", "x:[y]{z}", "anthropic:claude-a/b:c"])),
        "tools": draw(st.none() | st.lists(st.sampled_from(TOOLS), unique=True).map(tuple)),
        "disallowed_tools": tuple(denied),
        "access": draw(st.sampled_from([None, "read", "write"])),
        "paths": draw(st.lists(st.text(CHARS, max_size=12), max_size=3).map(tuple)),
        "max_steps": draw(st.none() | st.integers(1, 10**6)),
        "timeout_s": draw(st.none() | st.integers(1, 10**6).map(lambda ms: ms / 1000)),
        "effort": draw(st.none() | WORD.filter(lambda word: word.lower() not in ("null", "none", "~"))),
        "continuable": draw(st.sampled_from([None, True, False])),
        "spawns": draw(LABELS | st.just(("*",))),
        "skills": draw(LABELS),
        "output_schema": draw(st.none() | st.dictionaries(st.text(CHARS, max_size=6), SCHEMA, max_size=4)),
    }
    return freeze(Snapshot(ref=f"project:{values['name']}", digest=Digest(""), **values))


def again(snapshot: Snapshot) -> Snapshot:
    fields = read_fields(read_document(shown_as_own(snapshot).encode()), "file", Terms(known_tools=frozenset(TOOLS)))
    assert [str(fault) for fault in fields.faults] == []
    return freeze(Snapshot(ref=f"project:{fields.name}", name=fields.name, digest=Digest(""), **fields.values))


@settings(deadline=None)
@given(snapshots())
def test_a_snapshot_shown_and_read_again_is_the_same_to_the_digest(snapshot: Snapshot) -> None:
    assert again(snapshot) == snapshot


@settings(deadline=None)
@given(snapshots())
def test_every_key_of_what_is_shown_is_understood(snapshot: Snapshot) -> None:
    fields = read_fields(read_document(shown_as_own(snapshot).encode()), "file", Terms(known_tools=frozenset(TOOLS)))
    assert [key for key in fields.keys if not key.understood] == []


def test_many_brackets_are_written_so_that_they_can_be_read() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"pattern": "[{x}]"} for n in range(120)}}
    snapshot = freeze(
        Snapshot(ref="project:x", name="x", digest=Digest(""), description="[a] {b}", output_schema=schema)
    )
    assert again(snapshot) == snapshot


def test_a_plain_role_looks_as_one_writes_it() -> None:
    snapshot = Snapshot(
        ref="user:reviewer",
        name="reviewer",
        digest=Digest(""),
        description='Reviews: "code"',
        instructions="Review.",
        model="openai:gpt-5",
        tools=("read_file", "grep"),
        timeout_s=900.0,
        output_schema={"type": "object", "required": ["a"]},
    )
    assert shown_as_own(snapshot) == (
        "---\nname: reviewer\n"
        'description: "Reviews: \\"code\\""\n'
        'model: "openai:gpt-5"\n'
        'tools:\n  - "read_file"\n  - "grep"\n'
        "timeout: 900s\n"
        'output_schema:\n  type: "object"\n  required:\n    - "a"\n'
        "---\nReview.\n"
    )


def test_S113_the_same_role_in_another_dialect_has_another_ref_only_where_its_layer_differs() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / ".codex" / "agents").mkdir(parents=True)
        (folder / ".codex" / "agents" / "one.toml").write_text(
            'name = "one"\ndescription = "d"\ndeveloper_instructions = "Work."\nsandbox_mode = "read-only"\n'
        )
        first = Catalog(None, None).find("one", name)
        (folder / ".agents" / "agents").mkdir(parents=True)
        (folder / ".agents" / "agents" / "one.md").write_text(shown_as_own(first))
        second = Catalog(None, None).find("one", name)
        assert second == first
        (folder / ".agents" / "agents" / "one.md").write_text(
            shown_as_own(msgspec.structs.replace(first, instructions="Work more."))
        )
        assert Catalog(None, None).find("one", name).digest != first.digest


@pytest.mark.parametrize(
    ("written", "name", "is_noted"),
    [
        ("inherit", None, False),
        ("default", None, False),
        ("sonnet", None, True),
        ("Opus", None, True),
        ("sonnet[1m]", None, True),
        ("haiku:high", None, True),
        ("pi/smol", None, True),
        ("GPT-4.1 (copilot)", None, True),
        ("claude-sonnet-4-5", "anthropic:claude-sonnet-4-5", True),
        ("gpt-5.3-codex", "openai:gpt-5.3-codex", True),
        ("o3", "openai:o3", True),
        ("o4-mini", "openai:o4-mini", True),
        ("gemini-2.5-pro", "google:gemini-2.5-pro", True),
        ("anthropic/claude-x", "anthropic:claude-x", True),
        ("openrouter/deepseek/r1:free", "openrouter:deepseek/r1:free", True),
        ("scripted:./a/b.json", "scripted:./a/b.json", False),
        ("local:qwen3:8b", "local:qwen3:8b", False),
        ("offline", "offline", False),
    ],
)
def test_the_model_words_of_other_dialects(written: str, name: str | None, *, is_noted: bool) -> None:
    found, why = model_name(written, {})
    assert (found, why is not None) == (name, is_noted)


def test_an_alias_comes_first_in_any_case_and_is_read_as_if_written() -> None:
    aliases = {"Sonnet": "anthropic/claude-x", "fast": "sonnet", "mine": "inherit"}
    assert model_name("SONNET", aliases)[0] == "anthropic:claude-x"
    assert model_name("fast", aliases)[0] is None
    assert model_name("mine", aliases)[0] is None
