"""Damaged files of every dialect: each is read or named as broken, and what is read can be shown and read again."""

import json
from pathlib import Path
from typing import Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.events import Snapshot
from retinue.core.ids import Digest
from retinue.definitions.catalog import freeze
from retinue.definitions.diagnostic import Broken
from retinue.definitions.dialects import DIALECTS, OWN, Dialect, Form
from retinue.definitions.fields import read_fields
from retinue.definitions.forms import Part, read_parts
from retinue.definitions.gathering import Fields, Terms
from retinue.definitions.ownformat import shown_as_own

CORPUS: Final = Path(__file__).resolve().parents[1] / "fixtures" / "corpus" / "project"
FORMS: Final[dict[str, Form]] = {".md": "markdown", ".toml": "toml", ".json": "json", ".jsonc": "json"}
FILES: Final = sorted(path for path in CORPUS.rglob("*") if path.is_file() and path.suffix in FORMS)
BITS: Final = (
    *(b"---\n", b'"', b"{", b"[", b":", b"\n", b"\r", b"\0", b"\\ud800", b"\\", b"*", b"&a ", b"- ", b"  ", b'"""'),
    *(b"=", b"true", b"1e999", b"!!int ", b"|\n", b"\xff", b".nan", b"<<: ", b"? ", b"tools:", b"description: ", b""),
)  # fmt: skip
EDITS: Final = st.lists(
    st.tuples(st.integers(0, 1500), st.integers(0, 9), st.sampled_from(BITS)), min_size=1, max_size=5
)
TOOLS: Final = frozenset({"read_file", "grep"})


def read(part: Part, dialect: Dialect) -> Fields | None:
    return None if part.document is None else read_fields(part.document, part.name, Terms(dialect, TOOLS))


def frozen(fields: Fields) -> Snapshot:
    return freeze(Snapshot(ref=f"project:{fields.name}", name=fields.name, digest=Digest(""), **fields.values))


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(FILES), EDITS, st.sampled_from(DIALECTS))
def test_a_damaged_file_is_read_or_broken_and_what_is_read_means_the_same_when_shown(
    path: Path, edits: list[tuple[int, int, bytes]], dialect: Dialect
) -> None:
    data = bytearray(path.read_bytes()[:3000])
    for place, gone, bit in edits:
        data[place : place + gone] = bit
    try:
        parts = read_parts(FORMS[path.suffix], bytes(data), "one")
    except Broken:
        return
    for fields in (read(part, dialect) for part in parts):
        if fields is None:
            continue
        json.dumps([msgspec.to_builtins(key) for key in fields.keys]).encode()
        if fields.faults or fields.disabled:
            continue
        snapshot = frozen(fields)
        assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
        (again,) = read_parts("markdown", shown_as_own(snapshot).encode(), "x")
        shown = read(again, OWN)
        assert shown is not None
        assert [str(fault) for fault in shown.faults] == []
        assert frozen(shown) == snapshot


def test_a_word_that_can_be_no_tools_name_is_reported_and_ignored() -> None:
    text = "---\ndescription: d\ntools:\n  bash: false\n  two words: false\n  '': true\n---\nB\n"
    (part,) = read_parts("markdown", text.encode(), "one")
    fields = read(part, OWN)
    assert fields is not None
    assert fields.values["disallowed_tools"] == ("shell",)
    assert [(found.line, found.severity) for found in fields.findings if "no name" in found.cause] == [
        (5, "warning"),
        (6, "warning"),
    ]
