"""`load_skill`: reads a skill and the files in its folder, also outside the workspace; it reads nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.text import fit_chars
from retinue.definitions.skills import Skill, SkillShelf
from retinue.ports import Tool, ToolContext, ToolResult, ToolSchema
from retinue.tools.paths import Workspace, quoted, shown, shown_path
from retinue.tools.schema import parse, tool_schema
from retinue.tools.search import SKIPPED
from retinue.tools.workspace import READ_CHARS_MAX, ReadParameters, read_file

FILES_MAX: Final = 200
FOLDERS_MAX: Final = 200
DEPTH_MAX: Final = 4
"""Levels of a skill's folder that are listed."""
WHERE: Final = {"project": "the project", "user": "the user's own folder"}


class SkillParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What `load_skill` takes."""

    name: Annotated[str, msgspec.Meta(description="The skill.")]
    path: Annotated[str | None, msgspec.Meta(description="A file of the skill, from its folder.")] = None
    offset: Annotated[int, msgspec.Meta(ge=1, description="With path: the first line to show, counted from 1.")] = 1


@dataclass(frozen=True, slots=True)
class LoadSkill:
    """`load_skill` over one shelf."""

    shelf: SkillShelf
    schema: ToolSchema
    exclusive: bool = False
    group: Literal["read"] = "read"

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call; raise `not_found`, `outside_workspace` or `invalid` to refuse it."""
        ask = parse(SkillParameters, arguments)
        return await context.offload(self._answer, ask, context.cwd, context.data_dir)

    def _answer(self, ask: SkillParameters, cwd: str, data_dir: str) -> ToolResult:
        skill = self.shelf.find(ask.name, cwd)
        try:
            folder = Workspace(skill.folder, data_dir)
            return ToolResult(text=self._whole(skill, folder) if ask.path is None else _file(folder, ask, ask.path))
        except OSError as error:
            what = quoted(ask.path or skill.folder)
            return ToolResult(text=f"{what} cannot be read: {error.strerror or error}.", outcome="error")

    def _whole(self, skill: Skill, folder: Workspace) -> str:
        """Return a skill's text below what is to be said of it: whatever follows the last of our lines is the file."""
        own = PurePath(skill.path).name
        body, is_cut = fit_chars(self.shelf.read(skill), READ_CHARS_MAX)
        files, more = _files(folder, own)
        head = [
            f"[skill {skill.name} of {WHERE[skill.layer]}; its folder: {shown(skill.folder)}]",
            *([f"[it needs: {' '.join(skill.compatibility.split())}]"] if skill.compatibility else []),
            "[files in it, to be read with path]" if files else "[no other files in it]",
            *(f"- {name}" for name in files),
            *(["[more files are not listed]"] if more else []),
        ]
        cut = f" (the first {READ_CHARS_MAX} characters; path {own!r} shows all of it)" if is_cut else ""
        return "\n".join([*head, f"[the text of {own}{cut}]", body or "[it has no text]"])


def skill_tools(shelf: SkillShelf) -> tuple[Tool, ...]:
    """Return `load_skill` over a shelf."""
    return (LoadSkill(shelf, tool_schema("load_skill", SkillParameters)),)


def _file(folder: Workspace, ask: SkillParameters, path: str) -> str:
    """Return one file of a skill as `read_file` shows it."""
    try:
        return read_file(folder, ReadParameters(path=path, offset=ask.offset))
    except RetinueError as refusal:
        if refusal.code not in ("not_found", "outside_workspace"):
            raise
        where = "is not in" if refusal.code == "not_found" else "leads out of"
        detail = f"{quoted(path)} {where} the folder of the skill {ask.name[:100]!r}."
        raise RetinueError(refusal.code, detail, "load_skill without path lists the files.") from refusal


def _files(folder: Workspace, own: str) -> tuple[list[str], bool]:
    """Return the paths of a skill's files but its own text, nearer ones first, and whether there are more."""
    found: list[str] = []
    level: list[tuple[str, ...]] = [()]
    whole = True
    for _ in range(DEPTH_MAX):
        inner: list[tuple[str, ...]] = []
        for parts in level[:FOLDERS_MAX]:
            files, folders, seen = _look(folder, parts)
            found += [shown_path(path) for path in files if path != (own,)]
            inner += folders
            whole = whole and seen
        whole = whole and len(level) <= FOLDERS_MAX
        level = inner
        if len(found) > FILES_MAX:
            break
    return found[:FILES_MAX], bool(level) or not whole or len(found) > FILES_MAX


def _look(folder: Workspace, parts: tuple[str, ...]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]], bool]:
    """Return the files and the folders in one folder, and whether it was seen whole; links are neither."""
    try:
        with folder.open_parts(parts) as place:
            entries, whole = folder.entries(place)
    except (OSError, RetinueError):
        return [], [], False
    files = [(*parts, entry.name) for entry in entries if entry.kind == "file"]
    folders = [(*parts, entry.name) for entry in entries if entry.kind == "dir" and entry.name not in SKIPPED]
    return files, folders, whole
