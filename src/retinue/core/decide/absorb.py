"""How letters enter a context: the facts of a boundary; it decides nothing by itself."""

from retinue.core.events import LetterAbsorbed, MessageUser
from retinue.core.ids import StepNo, TurnNo
from retinue.core.session import Session


def absorb(session: Session, turn: TurnNo, step: StepNo) -> list[LetterAbsorbed | MessageUser]:
    """Return the facts that bring every waiting letter into a turn, each once and in the order they came."""
    facts: list[LetterAbsorbed | MessageUser] = []
    for letter in session.mail.values():
        result_of = letter.run_id if letter.kind == "result" else None
        facts.append(LetterAbsorbed(letter_id=letter.letter_id, turn=turn, step=step, run_id=result_of))
        facts.append(
            MessageUser(
                turn=turn,
                text=letter.text,
                source="agent",
                sender_id=letter.sender_id,
                letter_id=letter.letter_id,
            )
        )
    return facts
