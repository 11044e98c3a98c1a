"""The folds of a compaction, and the answer about a run whose ending could not be stored."""

from retinue.core.events import ContextCompacted, MessageUser, TurnClosed, TurnOpened, Usage
from retinue.core.ids import RunId, Seq, TurnNo
from retinue.core.messages import UserText
from retinue.core.run import unstored
from retinue.core.session import Session
from retinue.testing import samples

NOTES = ContextCompacted(up_to_seq=Seq(4), text="notes", kept=1, usage=Usage(input=5, total=5), retries=0)


def a_session() -> Session:
    session = Session(samples.ROOT, samples.opened(), "2030-01-01T00:00:00.000Z")
    session.open_turn(TurnOpened(turn=TurnNo(1), root_run_id=RunId("r_1"), cause="prompt"))
    for text in ("one", "two"):
        session.admit(MessageUser(turn=TurnNo(1), text=text, source="user"))
    usage = Usage()
    session.close_turn(
        TurnClosed(
            turn=TurnNo(1),
            root_run_id=RunId("r_1"),
            status="completed",
            reason="done",
            detail="",
            text="",
            partial=None,
            usage=usage,
            usage_tree=usage,
        )
    )
    return session


def test_a_compaction_outside_a_turn_replaces_the_older_part_and_counts() -> None:
    session = a_session()
    session.compact(NOTES)
    assert session.request() == (UserText(text="notes"), UserText(text="two"))
    assert (session.usage.input, session.usage.requests, session.requests) == (5, 1, 1)


def test_a_run_that_could_not_be_stored_shows_what_it_said_and_says_so() -> None:
    run = samples.run(1, status="completed", reason="done", output="the answer", partial=None)
    lost = unstored(run, "", "The disk is full.")
    body = lost.to_dict()
    assert (body["status"], body["reason"], body["stored"]) == ("failed", "store_failed", False)
    assert (body["output"], body["partial"]) == (None, "the answer")
    assert "stored" not in run.to_dict()
    nothing = samples.run(2, status="running", reason=None, output=None, partial=None)
    assert unstored(nothing, "", "x").partial is None
    assert unstored(nothing, "half", "x").partial == "half"
