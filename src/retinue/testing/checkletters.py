"""Checkers of letters and results: each goes home once, to somebody who exists; they read events and nothing else."""

from collections import Counter

from retinue.core.events import Event, LetterAbsorbed, LetterQueued, MessageUser, StepOpened, ToolFinished
from retinue.core.ids import LetterId, SessionId
from retinue.testing.checkruns import settled_stories
from retinue.testing.logview import LogView, Story, at


def check_letters(log: LogView) -> list[str]:
    """A letter lies in an existing receiver's log, is absorbed there at most once, and shown as one user message."""
    problems: list[str] = []
    letters: dict[LetterId, LetterQueued] = {}
    absorbed: set[LetterId] = set()
    for event in log.events:
        fact = event.fact
        if isinstance(fact, LetterQueued):
            problems += [at(event, text) for text in _queued(log, event, fact, letters)]
            letters.setdefault(fact.letter_id, fact)
        if isinstance(fact, LetterAbsorbed):
            problems += [at(event, text) for text in _absorbed(event.session_id, fact, letters, absorbed)]
            absorbed.add(fact.letter_id)
    return problems + _shown(log, letters, absorbed)


def _queued(log: LogView, event: Event, fact: LetterQueued, letters: dict[LetterId, LetterQueued]) -> list[str]:
    problems: list[str] = []
    header = log.by_session.get(fact.receiver_id)
    if header is None or header[0].position > event.position:
        problems.append(f"its receiver {fact.receiver_id} does not exist")
    if fact.receiver_id != event.session_id:
        problems.append(f"it lies in the log of {event.session_id}, its receiver is {fact.receiver_id}")
    if fact.letter_id in letters:
        problems.append(f"the letter {fact.letter_id} comes twice")
    if fact.kind == "result" and fact.run_id is not None and log.story(fact.run_id).settled_at > event.position:
        problems.append(f"it carries the result of run {fact.run_id}, which is not settled yet")
    return problems


def _absorbed(
    session_id: SessionId, fact: LetterAbsorbed, letters: dict[LetterId, LetterQueued], absorbed: set[LetterId]
) -> list[str]:
    letter = letters.get(fact.letter_id)
    problems: list[str] = []
    if letter is None or letter.receiver_id != session_id:
        problems.append(f"there is no letter {fact.letter_id} in this log")
    elif fact.run_id != letter.run_id:
        problems.append(f"the letter is of run {letter.run_id}, not {fact.run_id}")
    if fact.letter_id in absorbed:
        problems.append(f"the letter {fact.letter_id} is absorbed twice")
    return problems


def _shown(log: LogView, letters: dict[LetterId, LetterQueued], absorbed: set[LetterId]) -> list[str]:
    problems: list[str] = []
    shown: Counter[LetterId] = Counter()
    for event in log.events:
        fact = event.fact
        if isinstance(fact, MessageUser) and fact.letter_id is not None:
            shown[fact.letter_id] += 1
            letter = letters.get(fact.letter_id)
            if letter is None or letter.text != fact.text:
                problems.append(at(event, f"it does not say what the letter {fact.letter_id} says"))
    for letter_id in letters:
        wanted = int(letter_id in absorbed)
        if shown[letter_id] != wanted:
            problems.append(f"the letter {letter_id} is shown {shown[letter_id]} times and absorbed {wanted} times")
    return problems


def check_deliveries(log: LogView) -> list[str]:
    """A settlement goes home at most once; by letter where nobody awaits it; before its parent's next step."""
    problems: list[str] = []
    steps = _step_positions(log)
    for story, settled in settled_stories(log):
        homes = story.homes_before(log.events[-1].position + 1)
        if homes > 1 or len(story.letters) > 1 or (story.letters and story.collected_at):
            problems.append(
                f"run {story.run_id} goes home more than once: {len(story.letters)} letters, "
                f"{len(story.absorbed_at)} times absorbed, {len(story.collected_at)} times collected"
            )
        problems += _owed(log, story, steps.get(settled.parent_id, []))
    return problems + _collections(log)


def _step_positions(log: LogView) -> dict[SessionId, list[int]]:
    return {
        session_id: [event.position for event in events if isinstance(event.fact, StepOpened)]
        for session_id, events in log.by_session.items()
    }


def _owed(log: LogView, story: Story, steps: list[int]) -> list[str]:
    delivery = story.queued.spec.delivery if story.queued is not None else "letter"
    if delivery == "handle":
        return []
    if delivery == "letter" and log.at_rest and not story.letters:
        return [f"run {story.run_id} is settled, and no letter tells its parent"]
    boundary = next((position for position in steps if position > story.settled_at), None)
    if boundary is not None and not story.homes_before(boundary):
        return [
            f"run {story.run_id} was settled, and the step of its parent at position {boundary} knows nothing of it"
        ]
    return []


def _collections(log: LogView) -> list[str]:
    """A collected result is that of an own run, and settled."""
    problems: list[str] = []
    for event in log.events:
        fact = event.fact
        if isinstance(fact, ToolFinished) and fact.run_id is not None:
            story = log.story(fact.run_id)
            if story.settled is None or story.settled_at > event.position:
                problems.append(at(event, f"it carries home run {fact.run_id}, which is not settled"))
            elif story.settled.parent_id != event.session_id:
                problems.append(at(event, f"it carries home run {fact.run_id} of another parent"))
    return problems
