"""TOML and JSON files: lines, faults, and texts that are made to hang or to break a reader."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.definitions.catalog import Catalog
from retinue.definitions.diagnostic import Broken
from retinue.definitions.dialects import Form
from retinue.definitions.forms import read_parts
from retinue.definitions.frontmatter import FILE_BYTES_MAX

SECONDS_MAX = 5.0
"""Far more than any of these needs, far less than what grows with a square would take."""


def fault(form: Form, data: bytes) -> Broken:
    with pytest.raises(Broken) as caught:
        read_parts(form, data, "one")
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"a = 1\nb = \n", 2),
        (b'a = "open\n', 1),
        (b'a = 1\n\nb = """open\n', 3),
        (b"a = 1\na = 2\n", 2),
        (b"a = 1\rb = 2", 1),
        (b"a = caf\xe9\n", 1),
        (b"a = 1\n\0", 2),
        (b"a = " + b"[" * 50_000, 1),
        (b"a = " + b"9" * 200_000, 1),
        (b"x = 1\n" + b".".join([b"a"] * 100_000) + b" = 1\n", 2),
        (b"x = {" + b" . ".join([b"a"] * 50_000) + b" = 1}\n", 1),
        (b"[" + b".".join([b'"a"'] * 50_000) + b"]\n", 1),
        (b"#" * (FILE_BYTES_MAX + 1), None),
    ],
)
def test_a_toml_file_that_cannot_be_read_is_named_with_its_line_in_no_time(data: bytes, line: int | None) -> None:
    began = time.monotonic()
    assert fault("toml", data).line == line
    assert time.monotonic() - began < SECONDS_MAX


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"[]", 1),
        (b'{\n "a": 1\n "b": 2}', 3),
        (b'{"agent": 7}', 1),
        (b'{\n"agent": {"a": {},\n"a": {}}}', 3),
        (b'{"agent": {"a": {"b": 1, "b": 2}}}', 1),
        (b'{"a": "open', 1),
        (b'{"a": ' + b"[" * 100_000, 1),
        (b'{"a": 1} /*' + b" /*" * 80_000, None),
        (b'{"a": 1} ' + b"/*/*" * 60_000, 1),
        (b'{"a": 1,' + b"," * 200_000, 1),
        (b'{"' + b"\\" * 200_001, 1),
        (b'"' * 200_001, 1),
    ],
)
def test_a_json_file_that_cannot_be_read_is_named_with_its_line_in_no_time(data: bytes, line: int | None) -> None:
    began = time.monotonic()
    if line is None:
        assert read_parts("json", data, "one") == []
    else:
        assert fault("json", data).line == line
    assert time.monotonic() - began < SECONDS_MAX


def test_a_long_word_and_long_prose_are_no_fault() -> None:
    prose = "Word. Another one. See a.b.c. " * 2000
    text = f'description = "{"w" * 100_000}"\ndeveloper_instructions = """\n{prose}\n"""\n'
    (part,) = read_parts("toml", text.encode(), "one")
    assert part.document is not None
    assert [entry.line for entry in part.document.entries] == [1, 2]


Json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), Json, max_size=4), max_size=3))
def test_every_key_of_a_json_file_is_found_where_it_stands(agents: dict[str, dict[str, object]]) -> None:
    text = json.dumps({"agent": agents}, indent=1)
    lines = text.split("\n")
    parts = read_parts("json", text.encode(), "one")
    assert [part.name for part in parts] == list(agents)
    for part in parts:
        assert part.document is not None
        assert [entry.key for entry in part.document.entries] == list(agents[part.name])
        for entry in part.document.entries:
            assert lines[entry.line - 1].startswith(f"   {json.dumps(entry.key)}:")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".agents/agents/one.md", '---\nname: one\ndescription: "\\ud800"\n---\nB\n'),
        (".agents/agents/one.md", '---\nname: one\ndescription: d\neffort: "\\0"\n---\nB\n'),
        (".agents/agents/one.md", '---\nname: one\ndescription: d\n"\\udc00x": 1\n---\nB\n'),
        ("opencode.json", '{"agent": {"one": {"description": "\\ud83d"}}}'),
        ("opencode.json", '{"agent": {"one": {"description": "d", "prompt": "a\\u0000b"}}}'),
        ("opencode.json", '{"agent": {"one": {"description": "d", "tools": {"\\udfff": true}}}}'),
        ("opencode.json", '{"agent": {"\\udfff": {"description": "d"}, "one": 7}}'),
        (".codex/agents/one.toml", "description = 12\n"),
        (".codex/agents/one.toml", 'description = "d"\nmodel = 1979-05-27T07:32:00Z\n'),
        (".codex/agents/one.toml", 'description = "d"\nsandbox_mode = "anything"\n'),
        (".codex/agents/one.toml", 'description = "d"\ndeveloper_instructions = ["a"]\n'),
    ],
)
def test_what_is_no_text_breaks_its_role_and_nothing_else(path: str, text: str, tmp_path: Path) -> None:
    for file, content in ((path, text), (".pi/agents/good.md", "---\ndescription: d\n---\nB\n")):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(content)
    catalog = Catalog(None, None)
    assert [s.name for s in catalog.list(str(tmp_path))[0]] == ["good"]
    reports = catalog.check(str(tmp_path))
    broken = [r for r in reports if r.status == "broken"]
    assert [str(tmp_path / path)] * len(broken) == [r.path for r in broken]
    assert all(f.line for r in broken for f in r.findings if f.severity == "error" and r.name != "\\udfff")
    json.dumps([r.to_dict() for r in reports]).encode()
