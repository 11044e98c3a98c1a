"""Definition files: what is read, what is reported, which layer wins, what a snapshot freezes."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.definitions.catalog import FILES_PER_ROOT_MAX, Catalog, freeze
from retinue.definitions.diagnostic import Diagnostic
from retinue.definitions.frontmatter import FILE_BYTES_MAX

GOOD = "---\nname: {0}\ndescription: about {0}\n---\nBe {0}.\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    (home / "code" / "project" / ".git").mkdir(parents=True)
    return home / "code" / "project"


def write(folder: Path, file: str, text: str | bytes, dialect: str = ".agents") -> Path:
    path = folder / dialect / "agents" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def listed(project: Path, home: Path | None = None) -> tuple[dict[str, Snapshot], tuple[Diagnostic, ...]]:
    snapshots, diagnostics = Catalog(home).list(str(project))
    return {s.ref: s for s in snapshots}, diagnostics


def one(project: Path, front: str, body: str = "Body.") -> tuple[Snapshot, list[str]]:
    """Return the only project definition, and the causes that were reported of it."""
    write(project, "one.md", f"---\nname: one\ndescription: d\n{front}\n---\n{body}\n")
    snapshots, diagnostics = listed(project)
    return snapshots["project:one"], [d.cause for d in diagnostics]


def refusal(project: Path, ref: str, home: Path | None = None) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        Catalog(home).find(ref, str(project))
    return caught.value


def test_the_built_ins_are_sound_and_name_only_tools_that_exist(project: Path) -> None:
    snapshots, diagnostics = listed(project)
    assert diagnostics == ()
    assert list(snapshots) == ["builtin:explorer", "builtin:researcher", "builtin:worker"]
    for snapshot in snapshots.values():
        assert snapshot.tools == ("read_file", "list_dir", "grep", "load_skill")
        assert snapshot.instructions
        assert snapshot.spawns == ()
    assert snapshots["builtin:explorer"].access == "read"


def test_files_of_another_dialect_are_read(project: Path, repository: Path) -> None:
    shutil.copytree(repository / "tests" / "fixtures" / "agents", project / ".claude" / "agents")
    snapshots, diagnostics = listed(project)
    reviewer = snapshots["project:reviewer"]
    assert reviewer.tools == ("read_file", "grep", "list_dir")
    assert (reviewer.max_steps, reviewer.timeout_s, reviewer.model) == (12, 900, None)
    assert reviewer.instructions == "You review code.\n\n- Name the file and the line."
    assert reviewer.description.endswith('"I use the reviewer."</example>')
    examples = snapshots["project:examples"]
    assert examples.tools is None
    assert examples.model is None
    assert "belongs to the example" in examples.description
    assert [d.cause for d in diagnostics if d.severity != "note"] == []


def test_B86_a_bad_file_is_reported_with_its_line_and_hides_nothing_else(project: Path) -> None:
    write(project, "good.md", GOOD.format("good"))
    write(project, "colon.md", "---\nname: colon\ndescription: Use when: a, b\n---\nB\n")
    write(project, "quotes.md", '---\nname: quotes\ndescription: "Use when\nmodel: x\n---\nB\n')
    write(project, "open.md", "---\nname: open\ndescription: x\n")
    write(project, "empty.md", "")
    write(project, "binary.md", b"\x7fELF\n\0\1")
    write(project, "latin.md", b"---\nname: latin\ndescription: caf\xe9\n---\n")
    write(project, "plain.md", "# No front matter\n")
    write(project, "silent.md", "---\nname: silent\n---\nB\n")
    (project / ".agents" / "agents" / "x.md").mkdir()
    write(project, "notes.txt", "no definition")
    snapshots, diagnostics = listed(project)
    assert {"project:good", "project:colon"} == {ref for ref in snapshots if ref.startswith("project:")}
    assert snapshots["project:colon"].description == "Use when: a, b"
    found = {Path(d.path).stem: (d.line, d.cause) for d in diagnostics}
    assert found["quotes"] == (3, "The front matter is no YAML: found unexpected end of stream.")
    assert found["open"][0] == 4
    assert found["empty"] == (1, "The file is empty.")
    assert found["binary"] == (2, "The file is binary, not text.")
    assert found["latin"] == (3, "The file is not UTF-8.")
    assert found["plain"] == (1, "There is no front matter.")
    assert found["silent"] == (None, "There is no description.")
    assert all(d.remedy and d.severity == "error" for d in diagnostics)
    error = refusal(project, "quotes")
    assert error.code == "broken_agent"
    assert "quotes.md:3:" in error.detail


def test_a_broken_file_stands_for_its_own_name_too(project: Path) -> None:
    write(project, "explorer.md", "---\nname: scout\nmax_steps: many\ndescription: x\n---\nB\n")
    assert refusal(project, "scout").code == "broken_agent"
    assert refusal(project, "explorer").code == "broken_agent"
    write(project, "another.md", GOOD.format("explorer"))
    assert Catalog(None).find("explorer", str(project)).ref == "project:explorer"


LINES = ["---", "name: x", "description: d", "---", "One.", "Two."]


@pytest.mark.parametrize(
    "raw",
    [
        "\n".join(LINES),
        "\r\n".join(LINES) + "\r\n",
        "".join(line + ("\r\n" if n % 2 else "\n") for n, line in enumerate(LINES)),
        "".join(line + ("\n" if n % 2 else "\r\n") for n, line in enumerate(LINES)),
        "\r".join(LINES),
        "\ufeff" + "\n".join(LINES),
        "\n".join(["---  ", *LINES[1:3], "---\t ", *LINES[4:]]),
        "\n\n" + "\n".join(LINES) + "\n\n",
    ],
)
def test_B88_line_ends_marks_and_trailing_blanks_change_nothing(project: Path, raw: str) -> None:
    write(project, "x.md", "\n".join(LINES))
    expected, _ = listed(project)
    write(project, "x.md", raw)
    assert listed(project) == (expected, ())


def test_B90_the_first_layer_wins_a_broken_one_blocks_and_doubles_are_an_error(project: Path, home: Path) -> None:
    write(home, "explorer.md", GOOD.format("explorer"))
    snapshots, diagnostics = listed(project, home)
    assert "user:explorer" in snapshots
    assert "builtin:explorer" not in snapshots
    assert [d.severity for d in diagnostics] == ["warning"]
    assert "replaces the built-in 'explorer'" in diagnostics[0].cause
    write(project, "Explorer.md", "---\nname: Explorer\n---\nB\n")
    assert refusal(project, "explorer", home).code == "broken_agent"
    catalog = Catalog(home)
    assert catalog.find("user:EXPLORER", str(project)).ref == "user:explorer"
    assert catalog.find("builtin:explorer", str(project)).ref == "builtin:explorer"
    write(project, "one.md", GOOD.format("twin"))
    write(project, "two.md", GOOD.format("TWIN"))
    error = refusal(project, "twin", home)
    assert error.code == "broken_agent"
    assert "one.md" in error.detail
    assert "two.md" in error.detail


def test_the_order_of_folders_is_nearest_first_and_agents_before_claude(project: Path, home: Path) -> None:
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    catalog = Catalog(home)
    order = [
        (home, ".claude"),
        (home, ".agents"),
        (project, ".claude"),
        (project, ".agents"),
        (inner, ".claude"),
        (inner, ".agents"),
    ]
    for number, (folder, dialect) in enumerate(order):
        write(folder, "role.md", f"---\nname: role\ndescription: number {number}\n---\nB\n", dialect)
        assert catalog.find("role", str(inner)).description == f"number {number}"
        assert catalog.find("role", str(inner)).ref.startswith("user:" if folder == home else "project:")


def test_folders_above_a_project_and_above_one_without_git_lend_no_role(project: Path, home: Path) -> None:
    write(project.parent, "above.md", GOOD.format("above"))
    assert refusal(project, "above", home).code == "unknown_agent"
    (project / ".git").rmdir()
    assert refusal(project, "above", home).code == "unknown_agent"
    assert Catalog(home).find("above", str(project.parent)).name == "above"


def test_an_unknown_name_says_what_there_is(project: Path) -> None:
    write(project, "mine.md", GOOD.format("mine"))
    for ref in ("nobody", "user:mine", "elsewhere:mine", "", ":"):
        error = refusal(project, ref)
        assert error.code == "unknown_agent"
        assert error.hint == "There are: explorer, mine, researcher, worker."


def test_B78_each_form_of_a_tool_list_means_the_same(project: Path) -> None:
    forms = (
        "tools: Read, Grep",
        "tools: [Read, grep]",
        'tools: ["read", "grep"]',
        "tools:\n  - read_file\n  - grep",
        "tools: read grep",
    )
    for front in forms:
        snapshot, causes = one(project, front)
        assert snapshot.tools == ("read_file", "grep")
        assert causes == []


@pytest.mark.parametrize(
    ("front", "tools", "reported"),
    [
        ("color: red", None, 0),
        ("tools: null", None, 0),
        ("tools: *", None, 1),
        ('tools: "*"', None, 1),
        ("tools: all", None, 1),
        ("tools:", (), 0),
        ('tools: ""', (), 0),
        ("tools: []", (), 0),
        ("tools: Read, mcp__db__*", ("read_file", "mcp__db__*"), 0),
        ("tools: Read, mcp__db__*\ndisallowedTools: mcp__db__drop", ("read_file", "mcp__db__*"), 0),
        ("disallowedTools: all", (), 2),
        ("tools: Read, Nonsense", ("read_file",), 1),
        ("tools: Nonsense", (), 2),
        ("tools: Write, Edit, Bash", (), 4),
        ("tools: Read, Bash(git diff:*), Grep(x)", ("read_file",), 2),
        ("tools: Read, Task, spawn_agent", ("read_file",), 2),
        ("tools: Read, Task\nspawns: explorer", ("read_file", "spawn_agent"), 0),
        ("tools: Read, Grep\ndisallowedTools: Grep", ("read_file",), 0),
    ],
)
def test_B80_tools_never_widen_and_what_is_left_out_is_reported(
    project: Path, front: str, tools: tuple[str, ...] | None, reported: int
) -> None:
    snapshot, causes = one(project, front)
    assert snapshot.tools == tools
    assert len(causes) == reported


def test_tools_that_the_program_adds_may_be_named(project: Path) -> None:
    write(project, "one.md", "---\nname: one\ndescription: d\ntools: lookup, Read\n---\nB\n")
    assert Catalog(None, known_tools=["lookup", "read_file"]).find("one", str(project)).tools == ("lookup", "read_file")


@pytest.mark.parametrize(
    ("front", "field", "value"),
    [
        ("max_steps: 7", "max_steps", 7),
        ("max-turns: 7", "max_steps", 7),
        ("steps: 7", "max_steps", 7),
        ("max_steps: 0", "max_steps", None),
        ("timeout: 1h30m", "timeout_s", 5400),
        ("timeout: 90s", "timeout_s", 90),
        ("timeout: 500ms", "timeout_s", 0.5),
        ("timeout: 45", "timeout_s", 45),
        ("model: openai:small", "model", "openai:small"),
        ("effort: high", "effort", "high"),
        ("access: write", "access", "write"),
        ("paths: [a.py, b.py]", "paths", ("a.py", "b.py")),
        ("paths: a.py, b.py", "paths", ("a.py", "b.py")),
        ("continuable: no", "continuable", False),
        ("spawns: explorer, worker", "spawns", ("explorer", "worker")),
        ("spawns: *", "spawns", ("*",)),
        ("spawns: all", "spawns", ("*",)),
        ("spawns: false", "spawns", ()),
        ("permissionMode: plan\naccess: write", "access", "read"),
    ],
)
def test_each_key_is_understood(project: Path, front: str, field: str, value: object) -> None:
    snapshot, _ = one(project, front)
    assert getattr(snapshot, field) == value


@pytest.mark.parametrize(
    "front",
    [
        "max_steps: -1",
        "max_steps: ten",
        "max_steps: 5\nmaxTurns: 6",
        "timeout: soon",
        "timeout: -5m",
        "access: maybe",
        "continuable: perhaps",
        "tools: {a: b}",
        "paths: {a: b}",
        "model: [a]",
        "effort: &x high",
        "effort: *x",
        "effort: *",
        "effort: low\neffort: high",
        "name: again",
        "output: [" + "[" * 3000,
        "filler: " + "x" * 40_000,
    ],
)
def test_a_value_that_cannot_be_meant_breaks_the_file_with_its_line(project: Path, front: str) -> None:
    write(project, "one.md", f"---\nname: one\ndescription: d\n{front}\n---\nB\n")
    _, diagnostics = listed(project)
    (error,) = [d for d in diagnostics if d.severity == "error"]
    assert error.line is not None
    assert error.line >= 2
    assert refusal(project, "one").code == "broken_agent"


def test_words_that_yaml_would_change_stay_text(project: Path) -> None:
    write(project, "one.md", "---\nname: 0123\ndescription: on\neffort: 12:30\n---\nB\n")
    snapshot = Catalog(None).find("0123", str(project))
    assert (snapshot.name, snapshot.description, snapshot.effort) == ("0123", "on", "12:30")


def test_keys_that_are_not_acted_on_are_reported_with_their_line(project: Path) -> None:
    write(project, "one.md", "---\nname: one\ndescription: d\nfoo: a\nhooks: b\nmodel: sonnet\ncolor: red\n---\nB\n")
    _, diagnostics = listed(project)
    assert [(d.line, d.severity) for d in diagnostics] == [(4, "warning"), (5, "warning"), (6, "warning")]


def test_hidden_roles_are_found_but_not_listed_and_disabled_ones_are_neither(project: Path, home: Path) -> None:
    write(project, "h.md", "---\nname: h\ndescription: d\nhidden: true\n---\nB\n")
    write(project, "worker.md", "---\nname: worker\ndescription: d\ndisabled: true\n---\nB\n")
    snapshots, _ = listed(project, home)
    assert list(snapshots) == ["builtin:explorer", "builtin:researcher"]
    assert Catalog(home).find("h", str(project)).name == "h"
    assert "switched off" in refusal(project, "worker").detail


def test_S113_the_digest_covers_every_field(project: Path) -> None:
    plain: dict[str, object] = {"ref": "project:x", "name": "x", "digest": ""}
    base = msgspec.convert(plain, Snapshot)
    other: dict[str, object] = {
        "ref": "user:x",
        "name": "y",
        "description": "d",
        "instructions": "i",
        "model": "m",
        "tools": (),
        "disallowed_tools": ("grep",),
        "access": "read",
        "paths": ("a",),
        "max_steps": 1,
        "timeout_s": 1.0,
        "effort": "low",
        "continuable": True,
        "spawns": ("*",),
        "skills": ("pdf",),
        "output_schema": {"type": "object"},
    }
    assert set(other) == set(Snapshot.__struct_fields__) - {"digest"}
    digests = {freeze(msgspec.convert({**plain, key: value}, Snapshot)).digest for key, value in other.items()}
    assert len(digests | {freeze(base).digest}) == len(other) + 1
    assert freeze(base) == freeze(freeze(base))


def test_S113_a_changed_body_changes_the_digest_and_no_older_snapshot(project: Path) -> None:
    before, _ = one(project, "model: a", "First.")
    after, _ = one(project, "model: a", "Second.")
    again, _ = one(project, "model: a", "First.")
    assert before.digest != after.digest
    assert before == again
    assert before.instructions == "First."


def test_links_out_of_the_folder_pipes_and_sub_folders_are_left_out(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.md"
    outside.write_text(GOOD.format("outside"))
    write(project, "real.md", GOOD.format("real"))
    folder = project / ".agents" / "agents"
    (folder / "out.md").symlink_to(outside)
    (folder / "gone.md").symlink_to("nowhere.md")
    os.mkfifo(folder / "pipe.md")
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.md").write_text(GOOD.format("deep"))
    snapshots, diagnostics = listed(project)
    assert [ref for ref in snapshots if ref.startswith("project:")] == ["project:real"]
    assert {Path(d.path).name: d.severity for d in diagnostics} == {
        "out.md": "warning",
        "gone.md": "error",
        "pipe.md": "error",
    }


def test_a_folder_that_is_a_link_is_read_inside_the_project_and_ignored_outside(project: Path, tmp_path: Path) -> None:
    write(project, "real.md", GOOD.format("real"))
    (project / ".claude").symlink_to(".agents")
    assert "project:real" in listed(project)[0]
    (project / ".claude").unlink()
    write(tmp_path / "elsewhere", "far.md", GOOD.format("far"), ".claude")
    (project / ".claude").symlink_to(tmp_path / "elsewhere" / ".claude")
    snapshots, diagnostics = listed(project)
    assert "project:far" not in snapshots
    assert "leads out" in diagnostics[0].cause


def test_sizes_and_numbers_have_a_limit_that_is_said(project: Path) -> None:
    write(project, "big.md", GOOD.format("big") + "x" * FILE_BYTES_MAX)
    for number in range(FILES_PER_ROOT_MAX + 4):
        write(project, f"r{number:03}.md", GOOD.format(f"r{number}"))
    snapshots, diagnostics = listed(project)
    assert sum(ref.startswith("project:") for ref in snapshots) == FILES_PER_ROOT_MAX - 1
    causes = [d.cause for d in diagnostics]
    assert "The file is larger than 256 KiB." in causes
    assert any(cause.startswith(f"There are {FILES_PER_ROOT_MAX + 5} definitions") for cause in causes)


def test_a_diagnostic_is_one_line_and_a_value(project: Path) -> None:
    path = write(project, "bad.md", "no front matter\n")
    (diagnostic,) = listed(project)[1]
    assert str(diagnostic).startswith(f"{path}:1: There is no front matter.")
    assert list(diagnostic.to_dict()) == ["severity", "path", "line", "name", "cause", "remedy"]
