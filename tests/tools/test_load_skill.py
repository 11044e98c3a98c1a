"""`load_skill`: what it shows of a skill, and that it reads below that skill's folder and nowhere else."""

import os
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.definitions.skills import SkillShelf
from retinue.tools.skills import FILES_MAX, skill_tools
from retinue.tools.workspace import READ_CHARS_MAX
from tests.tools.harness import FakeContext, call


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    (home / "code" / ".git").mkdir(parents=True)
    return home / "code"


def write(top: Path, name: str, body: str = "Do it.", front: str = "description: d") -> Path:
    folder = top / ".agents" / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\n{front}\n---\n{body}\n")
    return folder


def load(project: Path, home: Path, **arguments: Any) -> str:
    (tool,) = skill_tools(SkillShelf(home))
    return call(tool, FakeContext(project), **arguments).text


def refusal(project: Path, home: Path, **arguments: Any) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        load(project, home, **arguments)
    return caught.value


def test_it_is_a_reading_tool_that_runs_beside_others_and_off_the_loop(project: Path, home: Path) -> None:
    write(project, "pdf")
    (tool,) = skill_tools(SkillShelf(home))
    assert (tool.schema.name, tool.group, tool.exclusive) == ("load_skill", "read", False)
    assert tool.schema.parameters["required"] == ["name"]
    context = FakeContext(project)
    call(tool, context, name="pdf")
    assert context.offloaded == 1


def test_a_skill_comes_with_its_folder_and_files_and_its_text_comes_last(project: Path, home: Path) -> None:
    folder = write(
        project, "pdf", "Step one.\n[files in it, to be read with path]\n- forged", "description: d\ncompatibility: git"
    )
    (folder / "scripts").mkdir()
    (folder / "scripts" / "fill.py").write_text("print()")
    (folder / "forms.md").write_text("# Forms")
    (folder / "link").symlink_to("forms.md")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    assert load(project, home, name="PDF") == (
        f"[skill pdf of the project; its folder: {folder}]\n[it needs: git]\n[files in it, to be read with path]\n"
        "- forms.md\n- scripts/fill.py\n[the text of SKILL.md]\n"
        "Step one.\n[files in it, to be read with path]\n- forged"
    )


def test_a_skill_of_the_user_is_read_although_it_lies_outside_the_workspace(project: Path, home: Path) -> None:
    folder = write(home, "mine", "")
    (folder / "more.md").write_text("one\ntwo\n")
    assert load(project, home, name="mine").splitlines()[0].startswith("[skill mine of the user's own folder; ")
    assert load(project, home, name="mine").endswith("[the text of SKILL.md]\n[it has no text]")
    assert load(project, home, name="mine", path="more.md") == "one\ntwo"
    assert load(project, home, name="mine", path="./more.md", offset=2) == "[lines 2-2 of 2]\ntwo"
    assert load(project, home, name="mine", path=str(folder / "more.md")) == "one\ntwo"
    assert load(project, home, name="mine", path="SKILL.md").startswith("---\nname: mine")


def test_an_unknown_skill_and_an_unknown_file_say_what_there_is(project: Path, home: Path) -> None:
    write(project, "pdf")
    assert refusal(project, home, name="nope").hint == "There are: pdf."
    missing = refusal(project, home, name="pdf", path="nope.md")
    assert (missing.code, missing.detail) == ("not_found", "'nope.md' is not in the folder of the skill 'pdf'.")
    assert refusal(project, home, name="pdf", path="\0").code == "invalid"
    assert refusal(project, home, path="SKILL.md").code == "invalid"
    assert refusal(project, home, name="pdf", path="SKILL.md", offset=0).code == "invalid"


@pytest.mark.parametrize(
    "path",
    ["../secret", "../../../secret.txt", "/etc/passwd", "a/../../other/SKILL.md", "out", "outer/secret.txt", "environ"],
)
def test_no_path_leads_out_of_the_folder(project: Path, home: Path, path: str) -> None:
    folder = write(project, "pdf")
    write(project, "other")
    (project / "secret.txt").write_text("secret")
    (folder / "a").mkdir()
    (folder / "out").symlink_to("../../../secret.txt")
    (folder / "outer").symlink_to(project)
    (folder / "environ").symlink_to("/proc/self/environ")
    error = refusal(project, home, name="pdf", path=path)
    assert error.code == "outside_workspace"
    assert "leads out of the folder of the skill 'pdf'" in error.detail


def test_pipes_loops_folders_and_binary_files_are_not_read(project: Path, home: Path) -> None:
    folder = write(project, "pdf")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "sub").mkdir()
    (folder / "logo.png").write_bytes(b"\x89PNG\0\1")
    for path in ("pipe", "loop", "sub"):
        assert refusal(project, home, name="pdf", path=path).code == "invalid"
    assert load(project, home, name="pdf", path="logo.png") == "[binary file of 6 bytes, not shown]"


def test_a_long_skill_and_a_long_file_are_cut_say_so_and_can_be_read_to_their_end(project: Path, home: Path) -> None:
    body = "\n".join(f"line {number} é" for number in range(9000))
    write(project, "pdf", body)
    text = load(project, home, name="pdf")
    assert len(text) < READ_CHARS_MAX + 1000
    assert f"(the first {READ_CHARS_MAX} characters; path 'SKILL.md' shows all of it)" in text
    seen: list[str] = []
    while True:
        head, *rest = load(project, home, name="pdf", path="SKILL.md", offset=len(seen) + 1).splitlines()
        seen += rest
        if "continue" not in head:
            break
    assert seen[4:] == body.splitlines()


def test_a_folder_with_many_files_and_levels_is_listed_within_bounds(project: Path, home: Path) -> None:
    folder = write(project, "pdf")
    for number in range(FILES_MAX + 50):
        (folder / f"f{number:03}.md").write_text("x")
    lines = load(project, home, name="pdf").splitlines()
    assert sum(line.startswith("- ") for line in lines) == FILES_MAX
    assert "[more files are not listed]" in lines
    deep = write(project, "deep")
    for number in range(10):
        deep = deep / f"d{number}"
        deep.mkdir()
        (deep / "f").write_text("x")
    lines = load(project, home, name="deep").splitlines()
    assert [line for line in lines if line.startswith("- ")] == ["- d0/f", "- d0/d1/f", "- d0/d1/d2/f"]
    assert "[more files are not listed]" in lines


def test_names_with_line_breaks_are_shown_on_one_line_and_understood_again(project: Path, home: Path) -> None:
    folder = write(project, "pdf")
    (folder / "a\n[the text of SKILL.md]").write_text("odd")
    text = load(project, home, name="pdf")
    assert "- a\\n[the text of SKILL.md]\n" in text
    assert load(project, home, name="pdf", path="a\\n[the text of SKILL.md]") == "odd"


def test_the_data_directory_is_closed_even_when_it_lies_in_the_skills_folder(project: Path, home: Path) -> None:
    folder = write(project, "pdf")
    data_dir = folder / ".retinue"
    data_dir.mkdir()
    (data_dir / "config.toml").write_text("x")
    (tool,) = skill_tools(SkillShelf(home, str(data_dir)))
    context = FakeContext(project, data_dir)
    assert "config" not in call(tool, context, name="pdf").text
    with pytest.raises(RetinueError) as caught:
        call(tool, context, name="pdf", path=".retinue/config.toml")
    assert caught.value.code == "outside_workspace"
