"""A second hand-made legal log: a forked child with four runs, post, a parked queue, a budget, a switch, a deletion."""

from typing import Any

from retinue.core.events import (
    BudgetExceeded,
    ContextSeeded,
    Event,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    PolicyChanged,
    RunQueued,
    RunSettled,
    RunSpec,
    RunStarted,
    SessionDeleted,
    StepClosed,
    StepOpened,
    SwitchChanged,
    ToolCall,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
)
from retinue.core.messages import AssistantText, UserText
from tests.testing.tale import RIGHTS, STEP, WALL, Tale, make, renumbered, times

HISTORY = (UserText(text="before"), AssistantText(text="yes"))
SEED: dict[str, Any] = {"seed": HISTORY, "seed_seq": 7}
LIMIT = 1000
OVER = Usage(input=1000, output=5, total=1005, requests=1)


class Saga(Tale):
    """A tale of a root `s_1` with a child `s_2` of four runs and a one-shot child `s_3` that is deleted."""

    family = {"s_1": None, "s_2": "s_1", "s_3": "s_1"}
    runs = {
        "r_1": ("s_2", "s_1"),
        "r_2": ("s_2", "s_1"),
        "r_3": ("s_2", "s_1"),
        "r_4": ("s_2", "s_1"),
        "r_5": ("s_3", "s_1"),
    }
    policy = {
        "caps.max_depth": 2,
        "caps.created.turn": 1,
        "life.message_scope": "tree",
        "life.rounds_max": 4,
        "life.queued_messages_max": 3,
        "budget.tree_tokens_max": LIMIT,
        "result.auto_turns_max": 1,
    }

    def begin(self, session: str, turn: int, root_run: str, text: str, **more: Any) -> None:
        source = "user" if session == "s_1" else "agent"
        self.add(session, make(TurnOpened, turn=turn, root_run_id=root_run, **{"cause": "prompt", **more}))
        if text:
            self.add(session, make(MessageUser, turn=turn, text=text, source=source))

    def think(self, session: str, turn: int, step: int, *calls: str, **more: Any) -> None:
        run, usage, reserved = more.get("run"), more.get("usage", STEP), more.get("reserved", 50)
        made = tuple(make(ToolCall, call_id=call, name="tool", arguments={}) for call in calls)
        words = {"text": f"{session} {turn}.{step}", "reasoning": "", "finish": "stop", "complete": True}
        digests = {"prompt_digest": "d", "tools_digest": "d"}
        self.add(
            session,
            make(StepOpened, turn=turn, step=step, model="m", reserved=reserved, **digests),
            make(MessageAssistant, turn=turn, step=step, tool_calls=made, **words),
            make(StepClosed, turn=turn, step=step, usage=usage, run_id=run),
        )

    def called(self, call: str) -> None:
        self.add("s_1", make(ToolStarted, call_id=call, name="tool", arguments={}))

    def replied(self, call: str, **more: Any) -> None:
        self.add("s_1", make(ToolFinished, call_id=call, outcome="ok", code=None, text="{}", **more))

    def accept(self, run: str, root_run: str, number: int = 1, **more: Any) -> None:
        spec = make(RunSpec, rights=RIGHTS, prompt=f"task of {run}", **{"round": number, **more})
        keys = self.run_keys(run, root_run_id=root_run, **self._kind(run))
        self.add("s_1", RunQueued(**keys, spec=spec))

    def go(self, run: str, turn: int, root_run: str, **more: Any) -> None:
        child = self.runs[run][0]
        self.begin(child, turn, root_run, f"task of {run}", run_id=run, **more)
        keys = self.run_keys(run, status="running", started_at=WALL, root_run_id=root_run, **self._kind(run))
        self.add("s_1", RunStarted(**keys))

    def finish(self, run: str, turn: int, root_run: str, status: str = "completed", reason: str = "done") -> None:
        child, text = self.runs[run][0], f"{self.runs[run][0]} {turn}.1"
        said = {"output": text} if status == "completed" else {"partial": text}
        self.end(child, turn, root_run, (1, 1), run_id=run, status=status, reason=reason)
        ended = {"status": status, "reason": reason, "started_at": WALL, "steps": 1, "usage": STEP, **said}
        keys = self.run_keys(run, **ended, root_run_id=root_run, **self._kind(run))
        self.add("s_1", RunSettled(**keys, usage_tree=STEP))
        self.post(f"l_{run[2:]}", "result", child, run_id=run, root_run_id=root_run)

    def _kind(self, run: str) -> dict[str, Any]:
        return {"provider": "spawn", "continuable": False} if run == "r_5" else {"provider": "fork"}

    def end(self, session: str, turn: int, root_run: str, steps: tuple[int, int], **more: Any) -> None:
        own, tree = steps
        ending: dict[str, Any] = {"status": "completed", "reason": "done", "detail": "", **more}
        said = more.pop("said", f"{session} {turn}.{own}")
        text, partial = (said, None) if ending["status"] == "completed" else (None, said)
        sums = {"usage": times(own), "usage_tree": times(tree)}
        told = {"turn": turn, "root_run_id": root_run, "text": text, "partial": partial}
        self.add(session, make(TurnClosed, **{**told, **sums, **ending}))

    def post(self, letter: str, kind: str, sender: str, **more: Any) -> None:
        keys = {"letter_id": letter, "kind": kind, "sender_id": sender, "receiver_id": "s_1", "text": f"text {letter}"}
        self.add("s_1", make(LetterQueued, **{**keys, "cut": False, "output_id": None, "run_id": None, **more}))

    def read(self, turn: int, step: int, *letters: str) -> None:
        for letter in letters:
            run = f"r_{letter[2:]}" if int(letter[2:]) < 6 else None
            words = {"text": f"text {letter}", "source": "agent", "letter_id": letter}
            self.add("s_1", make(LetterAbsorbed, letter_id=letter, turn=turn, step=step, run_id=run))
            self.add("s_1", make(MessageUser, turn=turn, **words))


def saga() -> list[Event]:
    """The whole saga, without the log of the deleted child."""
    tale = Saga()
    tale.open_session("s_1")
    tale.begin("s_1", 1, "r_00", "before")
    tale.think("s_1", 1, 1)
    tale.end("s_1", 1, "r_00", (1, 1))
    _interrupted(tale)
    _messages(tale)
    _detached(tale)
    _switched_and_spent(tale)
    return renumbered([event for event in tale.events if event.session_id != "s_3"])


def _interrupted(tale: Saga) -> None:
    tale.begin("s_1", 2, "r_0", "go")
    tale.think("s_1", 2, 1, "c_1")
    tale.called("c_1")
    tale.accept("r_1", "r_0", **SEED)
    tale.open_session("s_2", "fork")
    tale.add("s_2", make(ContextSeeded, from_id="s_1", up_to_seq=7, messages=HISTORY))
    tale.go("r_1", 1, "r_0")
    tale.replied("c_1")
    tale.think("s_1", 2, 2, "c_2", "c_3")
    tale.called("c_2")
    tale.accept("r_2", "r_0", 2, cause="message")
    tale.replied("c_2")
    tale.called("c_3")
    tale.accept("r_3", "r_0", 3, cause="message")
    tale.replied("c_3")
    tale.think("s_2", 1, 1, run="r_1")
    tale.post("l_9", "report", "s_2", waking=False)
    tale.finish("r_1", 1, "r_0", "interrupted", "interrupted")
    tale.wait("r_2", "parked")
    tale.wait("r_3", "parked")


def _messages(tale: Saga) -> None:
    tale.read(2, 3, "l_9", "l_1")
    tale.think("s_1", 2, 3, "c_4")
    tale.called("c_4")
    tale.wait("r_2", "slot")
    tale.wait("r_3", "slot")
    tale.accept("r_4", "r_0", 4, cause="message")
    tale.go("r_2", 2, "r_0", cause="message")
    tale.replied("c_4")
    tale.wait("r_2", "budget")
    tale.resume("r_2")
    tale.think("s_2", 2, 1, run="r_2")
    tale.post("l_8", "message", "s_2")
    tale.finish("r_2", 2, "r_0")
    tale.go("r_3", 3, "r_0", cause="message")
    tale.think("s_2", 3, 1, run="r_3")
    tale.finish("r_3", 3, "r_0")
    tale.go("r_4", 4, "r_0", cause="message")
    tale.think("s_2", 4, 1, run="r_4")
    tale.finish("r_4", 4, "r_0")
    tale.read(2, 4, "l_8", "l_2", "l_3", "l_4")
    tale.think("s_1", 2, 4)
    tale.end("s_1", 2, "r_0", (4, 8))


def _detached(tale: Saga) -> None:
    tale.add("s_1", PolicyChanged(changes={"result.turn_end": "detach"}))
    tale.begin("s_1", 3, "r_8", "once more")
    tale.think("s_1", 3, 1, "c_5")
    tale.called("c_5")
    tale.accept("r_5", "r_8")
    tale.open_session("s_3")
    tale.go("r_5", 1, "r_8")
    tale.replied("c_5")
    tale.think("s_1", 3, 2)
    tale.end("s_1", 3, "r_8", (2, 2))
    tale.think("s_3", 1, 1, run="r_5")
    tale.finish("r_5", 1, "r_8")
    tale.begin("s_1", 4, "r_8", "", cause="letter")
    tale.read(4, 1, "l_5")
    tale.think("s_1", 4, 1)
    tale.end("s_1", 4, "r_8", (1, 1))
    tale.add("s_1", make(SessionDeleted, child_id="s_3"))


def _switched_and_spent(tale: Saga) -> None:
    tale.add("s_1", SwitchChanged(on=False))
    tale.begin("s_1", 5, "r_9", "alone")
    tale.add("s_1", SwitchChanged(on=True))
    tale.think("s_1", 5, 1, usage=OVER, reserved=900)
    tale.add("s_1", make(BudgetExceeded, root_run_id="r_9", limit=LIMIT, spent=1005, reserved=0))
    spent = {"usage": OVER, "usage_tree": OVER}
    tale.end("s_1", 5, "r_9", (1, 1), status="cancelled", reason="budget", **spent)
