"""The closed list of refusals and their HTTP statuses; it never prints or logs one."""

from typing import Final

STATUS_OF: Final[dict[str, int]] = {
    "not_found": 404,
    "invalid": 422,
    "depth_exceeded": 409,
    "cap_running": 429,
    "cap_created": 429,
    "cap_rounds": 429,
    "cap_messages": 429,
    "switched_off": 409,
    "not_continuable": 409,
    "already_ended": 409,
    "turn_open": 409,
    "denied": 403,
    "denied_hook": 403,
    "approval_expired": 403,
    "outside_workspace": 403,
    "no_claim": 403,
    "file_claimed": 409,
    "file_changed": 409,
    "unknown_agent": 404,
    "broken_agent": 422,
    "unknown_model": 422,
    "unknown_tool": 422,
    "unsupported": 422,
    "budget_exceeded": 402,
    "store_failed": 503,
    "store_owned": 503,
    "stopping": 503,
    "unauthorized": 401,
    "forbidden_origin": 403,
    "too_large": 413,
}
"""Error code to HTTP status (SHAPES, Errors)."""

MEANING_OF: Final[dict[str, tuple[str, str]]] = {
    "not_found": ("the id is unknown, or belongs to somebody else", "list what there is and use its id"),
    "invalid": ("an argument, setting or file has the wrong form", "correct what the sentence names"),
    "depth_exceeded": ("a child here would lie deeper than `caps.max_depth`", "do the task in this session"),
    "cap_running": ("too many children work, and `caps.on_full` is `reject`", "wait for one to end"),
    "cap_created": ("the turn or root run has created all the children it may", "finish with those there are"),
    "cap_rounds": ("the child has had all the runs it may", "spawn a new child"),
    "cap_messages": ("too many messages wait for the child", "wait until it has taken some"),
    "switched_off": ("delegation is switched off", "switch it on, or work without children"),
    "not_continuable": ("the child ended and takes no further messages", "spawn a new child"),
    "already_ended": ("what should change is over", "nothing; read how it ended"),
    "turn_open": ("the session is in a turn already", "wait for its end, steer or interrupt it"),
    "denied": ("the person or a rule said no", "go on without it"),
    "denied_hook": ("a hook said no, or failed where that means no", "read its reason"),
    "approval_expired": ("nobody answered in time", "ask again when somebody is there"),
    "outside_workspace": ("the path leads out of the workspace or into the data directory", "use a path inside"),
    "no_claim": ("the file is not among those the run holds", "ask for the files when the child is spawned"),
    "file_claimed": ("another run holds the file", "wait for that run, or leave the file"),
    "file_changed": ("the file is not as it was when it was read", "read it again"),
    "unknown_agent": ("no role has this name", "choose one of those listed"),
    "broken_agent": ("the role's file cannot be read", "repair the line that the sentence names"),
    "unknown_model": ("no model has this name, or its connection is not set up", "see `retinue models`"),
    "unknown_tool": ("no tool has this name", "choose one of those offered"),
    "unsupported": ("it is part of the design, but this version does not act on it", "leave the setting as it is"),
    "budget_exceeded": ("the tree has used its tokens", "raise the budget or start anew"),
    "store_failed": ("a fact could not be stored; until a restart nothing more is", "repair the disk, start again"),
    "store_owned": ("another process owns the data directory", "use that one, end it, or take another directory"),
    "stopping": ("the runtime is going down", "start it again"),
    "unauthorized": ("the token is missing or wrong", "send the right one"),
    "forbidden_origin": ("the request came from another site", "use the address the server printed"),
    "too_large": ("the text or file is over its limit", "send less"),
}
"""Error code to what happened and what to do; `docs/errors.md` is made from it."""


class RetinueError(Exception):
    """A refusal: what was refused and why (`detail`), and what to do about it (`hint`).

    Attributes:
        code: one of the keys of `STATUS_OF`.
        detail: one sentence for a person.
        hint: what to do, or an empty string.
    """

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        """Refuse with `code`; an unknown code is a fault of the caller and raises `KeyError`."""
        self.status = STATUS_OF[code]
        self.code = code
        self.detail = detail
        self.hint = hint
        super().__init__(f"{code}: {detail}")

    def to_dict(self) -> dict[str, object]:
        """Return the problem body that every door prints (SHAPES, Errors)."""
        return {
            "type": "about:blank",
            "title": self.code.replace("_", " "),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "hint": self.hint,
        }

    def to_model(self) -> dict[str, object]:
        """Return the body that a model gets as an error result (SHAPES, Tools towards the model)."""
        return {"error": {"code": self.code, "message": self.detail, "hint": self.hint}}


def not_found(what: str, name: str) -> RetinueError:
    """Return the one answer for unknown and for foreign ids (CONTRACT section 2, rule 8)."""
    return RetinueError("not_found", f"There is no {what} {name!r} here.", "List what there is and use its id.")
