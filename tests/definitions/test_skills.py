"""Skills: which folders are searched, which wins, what is tolerated, and what a hostile folder cannot do."""

import os
import time
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.definitions.diagnostic import Diagnostic
from retinue.definitions.frontmatter import FILE_BYTES_MAX
from retinue.definitions.skills import PROJECT_FOLDERS, SKILLS_PER_ROOT_MAX, USER_FOLDERS, Skill, SkillShelf

GOOD = "---\nname: {0}\ndescription: about {0}\n---\nDo {0}.\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def project(home: Path) -> Path:
    (home / "code" / "project" / ".git").mkdir(parents=True)
    return home / "code" / "project"


def write(folder: Path, name: str, text: str | bytes | None = None, root: str = ".agents/skills") -> Path:
    path = folder / root / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    body = GOOD.format(name) if text is None else text
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return path


def found(project: Path, home: Path | None = None) -> tuple[dict[str, Skill], tuple[Diagnostic, ...]]:
    skills, findings = SkillShelf(home).all(str(project))
    assert len({skill.name for skill in skills}) == len(skills)
    return {skill.name: skill for skill in skills}, findings


def causes(findings: tuple[Diagnostic, ...]) -> dict[str | None, str]:
    return {finding.name: finding.cause for finding in findings}


def test_every_known_folder_of_the_project_and_of_the_user_is_searched(project: Path, home: Path) -> None:
    for number, folder in enumerate(PROJECT_FOLDERS):
        write(project, f"p{number}", root=folder)
    for number, folder in enumerate(USER_FOLDERS):
        write(home, f"u{number}", root=folder)
    skills, findings = found(project, home)
    assert findings == ()
    assert [s.name for s in skills.values() if s.layer == "project"] == [f"p{n}" for n in range(len(PROJECT_FOLDERS))]
    assert [s.name for s in skills.values() if s.layer == "user"] == [f"u{n}" for n in range(len(USER_FOLDERS))]


def test_the_nearest_wins_and_what_it_replaces_is_said(project: Path, home: Path) -> None:
    inner = project / "sub"
    inner.mkdir()
    places = [
        (inner, ".claude/skills"),
        (project, ".agents/skills"),
        (project, ".claude/skills"),
        (home, ".agents/skills"),
    ]
    for number, (folder, root) in enumerate(places):
        write(folder, "pdf", f"---\nname: pdf\ndescription: number {number}\n---\n", root)
    skills, findings = found(inner, home)
    assert skills["pdf"].description == "number 0"
    assert [f.severity for f in findings] == ["note"] * 3
    assert found(project, home)[0]["pdf"].description == "number 1"
    assert SkillShelf(home).find("PDF", str(project)).description == "number 1"


def test_the_home_directory_lends_nothing_to_a_project_as_a_parent_folder(home: Path) -> None:
    write(home, "mine")
    (home / "loose").mkdir()
    assert found(home / "loose")[0] == {}
    assert found(home / "loose", home)[0]["mine"].layer == "user"
    (home / ".git").mkdir()
    assert found(home / "loose", home)[0]["mine"].layer == "user", "also where the home directory is a repository"


def test_a_broken_skill_is_reported_with_its_line_and_hides_nothing_else(project: Path, home: Path) -> None:
    write(project, "good")
    write(project, "colon", "---\nname: colon\ndescription: Use when: a, b\n---\nB\n")
    write(project, "quotes", '---\nname: quotes\ndescription: "Use when\nlicense: x\n---\nB\n')
    write(project, "open", "---\nname: open\ndescription: x\n")
    write(project, "empty", "")
    write(project, "binary", b"\x7fELF\n\0\1")
    write(project, "latin", b"---\nname: latin\ndescription: caf\xe9\n---\n")
    write(project, "plain", "# No front matter\n")
    write(project, "silent", "---\nname: silent\n---\nB\n")
    write(project, "list", "---\nname: list\ndescription: [a, b]\n---\nB\n")
    write(project, "huge", GOOD.format("huge") + "x" * FILE_BYTES_MAX)
    write(home, "silent")
    skills, findings = found(project, home)
    assert list(skills) == ["colon", "good"], "a broken one stands for its name"
    assert skills["colon"].description == "Use when: a, b"
    errors = {f.name: (f.line, f.cause) for f in findings if f.severity == "error"}
    assert errors == {
        "quotes": (3, "The front matter is no YAML: found unexpected end of stream."),
        "open": (4, "The front matter is not closed."),
        "empty": (1, "The file is empty."),
        "binary": (2, "The file is binary, not text."),
        "latin": (3, "The file is not UTF-8."),
        "plain": (1, "There is no front matter."),
        "silent": (None, "There is no description."),
        "list": (None, "There is no description."),
        "huge": (None, "The file is larger than 256 KiB."),
    }
    assert all(f.remedy for f in findings)
    with pytest.raises(RetinueError) as caught:
        SkillShelf(home).find("quotes", str(project))
    assert caught.value.code == "invalid"
    assert "quotes/SKILL.md:3:" in caught.value.detail


def test_an_unknown_name_is_answered_with_those_that_there_are(project: Path) -> None:
    with pytest.raises(RetinueError) as none:
        SkillShelf(None).find("pdf", str(project))
    assert (none.value.code, none.value.hint) == ("not_found", "There are none.")
    write(project, "pdf")
    for name in ("nope", "", "../pdf", "pdf/SKILL.md", "p\0df", "x" * 10_000):
        with pytest.raises(RetinueError) as caught:
            SkillShelf(None).find(name, str(project))
        assert (caught.value.code, caught.value.hint) == ("not_found", "There are: pdf.")
        assert len(caught.value.detail) < 300


def test_the_public_keys_are_understood_and_those_of_other_dialects_reported(project: Path) -> None:
    front = (
        "name: pdf\ndescription: d\nlicense: MIT\ncompatibility: needs git\nmetadata:\n  author: a\n"
        "allowed-tools: Bash(git:*) Read\nmodel: opus\nuser-invocable: false\ndisable-model-invocation: true"
    )
    write(project, "pdf", f"---\n{front}\n---\nB\n")
    skills, findings = found(project)
    assert (skills["pdf"].compatibility, skills["pdf"].listed) == ("needs git", False)
    assert {f.severity for f in findings} == {"note"}
    assert [(f.line, f.cause) for f in findings] == [
        (8, "'allowed-tools' grants nothing here."),
        (9, "The key 'model' is not known here and is ignored."),
        (10, "The key 'user-invocable' is not known here and is ignored."),
    ]


def test_carriage_returns_a_byte_order_mark_and_a_missing_name_do_no_harm(project: Path) -> None:
    write(project, "pdf", b"\xef\xbb\xbf---\r\ndescription: d\r\n---\r\n\r\none\r\ntwo\r\n")
    skills, findings = found(project)
    assert SkillShelf(None).read(skills["pdf"]) == "one\ntwo"
    assert causes(findings) == {"pdf": "No name is given; the folder's is taken: 'pdf'."}


def test_the_folder_gives_the_name_and_another_one_in_the_file_is_said(project: Path) -> None:
    write(project, "git-release", "---\nname: Git Release\ndescription: d\n---\n")
    write(project, "My_Skill", "---\nname: my_skill\ndescription: d\n---\n")
    write(project, "x" * 65)
    write(project, "-bad-")
    skills, findings = found(project)
    assert list(skills) == ["My_Skill", "git-release"]
    assert SkillShelf(None).find("my_skill", str(project)).name == "My_Skill"
    assert causes(findings)["git-release"] == "It calls itself 'Git Release'; the folder's name holds: 'git-release'."
    assert causes(findings)["My_Skill"].startswith("The folder's name is not made of lower-case letters")
    assert causes(findings)["-bad-"] == "The folder's name cannot be a skill's name."
    assert causes(findings)["x" * 65] == "The folder's name cannot be a skill's name."


def test_of_two_spellings_of_a_name_the_first_holds(project: Path) -> None:
    write(project, "PDF")
    write(project, "pdf")
    if len(list((project / ".agents" / "skills").iterdir())) == 1:
        pytest.skip("this file system keeps no two names that differ only in case")
    skills, findings = found(project)
    assert list(skills) == ["PDF"]
    assert "Its name differs from 'PDF' only in case." in [f.cause for f in findings]


def test_a_file_in_another_case_is_found_and_folders_without_one_are_no_skills(project: Path) -> None:
    write(project, "pdf").rename(project / ".agents" / "skills" / "pdf" / "skill.md")
    (project / ".agents" / "skills" / "assets").mkdir()
    (project / ".agents" / "skills" / "README.md").write_text("about skills")
    skills, findings = found(project)
    assert list(skills) == ["pdf"]
    assert findings == ()


def test_a_long_description_is_cut_and_that_is_said(project: Path) -> None:
    write(project, "pdf", f"---\nname: pdf\ndescription: {'é' * 2000}\n---\n")
    skills, findings = found(project)
    assert skills["pdf"].description == "é" * 1024
    assert causes(findings) == {"pdf": "The description is longer than 1024 characters; it is cut."}


def test_of_300_skills_the_first_256_are_read_and_in_reasonable_time(project: Path) -> None:
    for number in range(300):
        write(project, f"s{number:03}")
    begin = time.monotonic()
    skills, findings = found(project)
    assert time.monotonic() - begin < 10
    assert list(skills) == [f"s{number:03}" for number in range(SKILLS_PER_ROOT_MAX)]
    assert [f.cause for f in findings] == ["There are 300 skills; the first 256 by name are read."]


def test_links_out_are_ignored_and_links_inside_are_followed(project: Path, home: Path, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", "out").parent
    root = write(project, "real").parent.parent
    (root / "out").symlink_to(elsewhere)
    (root / "alias").symlink_to("real")
    (root / "loop").symlink_to("loop")
    write(home, "out")
    (project / ".claude").mkdir()
    (project / ".claude" / "skills").symlink_to(elsewhere.parent)
    (project / ".codex").mkdir()
    (project / ".codex" / "skills").symlink_to(root)
    skills, findings = found(project, home)
    assert {(s.name, s.layer) for s in skills.values()} == {("real", "project"), ("alias", "project"), ("out", "user")}
    reported = [(f.name, f.cause) for f in findings]
    assert ("out", "The link leads out of its folder.") in reported
    assert (None, "It leads out of its place.") in reported
    assert len(reported) == 3, "the same folder under a second name is no second finding"


def test_a_skill_file_that_is_a_pipe_a_loop_a_folder_or_a_link_out_is_refused_unread(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(GOOD.format("link"))
    for name in ("pipe", "loop", "folder", "link", "environ"):
        write(project, name).unlink()
    root = project / ".agents" / "skills"
    os.mkfifo(root / "pipe" / "SKILL.md")
    (root / "loop" / "SKILL.md").symlink_to("SKILL.md")
    (root / "folder" / "SKILL.md").mkdir()
    (root / "link" / "SKILL.md").symlink_to(tmp_path / "secret")
    (root / "environ" / "SKILL.md").symlink_to("/proc/self/environ")
    write(project, "good")
    skills, findings = found(project)
    assert list(skills) == ["good"]
    assert {f.name: f.cause.partition(":")[0] for f in findings} == {
        "pipe": "It is no ordinary file.",
        "loop": "It cannot be read",
        "folder": "It is no ordinary file.",
        "link": "It leads out of its place.",
        "environ": "It leads out of its place.",
    }


def test_nothing_in_the_data_directory_is_a_skill(project: Path) -> None:
    data_dir = project / ".retinue"
    write(data_dir, "pdf", root="skills")
    (project / ".agents").mkdir()
    (project / ".agents" / "skills").symlink_to("../.retinue/skills")
    skills, findings = SkillShelf(None, str(data_dir)).all(str(project))
    assert skills == ()
    assert [f.cause for f in findings] == ["It leads into a folder that is closed to agents."]
    assert [s.name for s in SkillShelf(None).all(str(project))[0]] == ["pdf"]


def test_a_file_that_goes_away_after_it_was_found_is_a_refusal(project: Path) -> None:
    path = write(project, "pdf")
    skill = SkillShelf(None).find("pdf", str(project))
    path.unlink()
    with pytest.raises(RetinueError) as caught:
        SkillShelf(None).read(skill)
    assert caught.value.code == "invalid"
