"""Checkers of letters and results: each goes home once, to somebody who exists; they read events and nothing else."""

from collections import Counter

from retinue.core.events import Event, LetterAbsorbed, LetterQueued, MessageUser, RunSettled, StepOpened, ToolFinished
from retinue.core.ids import LetterId, RunId, SessionId
from retinue.core.mailbox import QUIET_REASONS
from retinue.testing.logview import NO_RUN, LogView, Span, Story, at


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
    elif fact.run_id != (letter.run_id if letter.kind == "result" else None):
        problems.append(f"the {letter.kind} letter is of run {letter.run_id}, not {fact.run_id}")
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


def check_post(log: LogView) -> list[str]:
    """Who may write to whom; what wakes; letters are read in the order they came, after the turn's instruction."""
    problems: list[str] = []
    order: dict[LetterId, int] = {}
    read: dict[SessionId, int] = {}
    for event in log.events:
        fact = event.fact
        if isinstance(fact, LetterQueued):
            order.setdefault(fact.letter_id, event.position)
            problems += [at(event, text) for text in _may_write(log, event, fact) + _may_wake(log, fact)]
        if isinstance(fact, LetterAbsorbed):
            came = order.get(fact.letter_id, event.position)
            if came < read.get(event.session_id, 0):
                problems.append(at(event, f"the letter {fact.letter_id} came before one that was read before it"))
            read[event.session_id] = max(came, read.get(event.session_id, 0))
    return problems + [text for span in log.spans for text in _instruction(span)]


def _may_write(log: LogView, event: Event, fact: LetterQueued) -> list[str]:
    policy, sender = log.policy(event.root_id, event.position), log.headers.get(fact.sender_id)
    if fact.kind == "message" and policy["life.message_scope"] != "tree":
        return ["a message is a letter only where life.message_scope is tree"]
    if fact.kind == "message" and sender is not None and sender.root_id != event.root_id:
        return [f"its sender {fact.sender_id} belongs to another tree"]
    if fact.kind != "report":
        return []
    problems = [] if policy["life.report"] else ["life.report is false"]
    if sender is not None and sender.parent_id != fact.receiver_id:
        problems.append(f"its sender {fact.sender_id} is no child of the receiver")
    if sender is not None and log.turn_at(fact.sender_id, event.position) is None:
        problems.append(f"its sender {fact.sender_id} has no open turn")
    return problems


def _may_wake(log: LogView, fact: LetterQueued) -> list[str]:
    settled = log.story(fact.run_id or NO_RUN).settled
    if fact.kind != "result" or settled is None or fact.waking is not (settled.reason in QUIET_REASONS):
        return []
    return [f"the result of a run that ended {settled.reason} is {'' if fact.waking else 'not '}waking"]


def _instruction(span: Span) -> list[str]:
    first = next((event for event in span.events if isinstance(event.fact, MessageUser)), None)
    letter_id = first.fact.letter_id if first is not None and isinstance(first.fact, MessageUser) else None
    if first is None or (letter_id is not None) is (span.opened.cause == "letter"):
        return []
    return [at(first, f"the turn begins with it, and its cause is {span.opened.cause}")]


def check_auto_turns(log: LogView) -> list[str]:
    """Letters start a turn only where the policy lets them, with a waking letter to show, and not too often."""
    problems: list[str] = []
    started: Counter[RunId] = Counter()
    letters = {event.fact.letter_id: event.fact for event in log.events if isinstance(event.fact, LetterQueued)}
    begins = [(span.position, span.session_id, span.opened.root_run_id) for span in log.spans if _by_letter(span)]
    begins += [
        (story.queued_at, story.queued.parent_id, story.queued.root_run_id)
        for story in log.stories.values()
        if story.queued is not None and story.queued.spec.cause == "letter"
    ]
    for position, session_id, root_run_id in sorted(begins):
        header = log.headers.get(session_id)
        policy = log.policy(session_id if header is None else header.root_id, position)
        started[root_run_id] += 1
        most = policy.number("result.auto_turns_max")
        if policy["result.idle_parent"] != "start_turn":
            problems.append(f"position {position}: a letter starts a turn, result.idle_parent is store")
        if most is not None and started[root_run_id] > most:
            problems.append(
                f"position {position}: turn {started[root_run_id]} that letters start in {root_run_id}, "
                f"result.auto_turns_max is {most}"
            )
    return problems + [text for span in log.spans for text in _woken(span, letters)]


def _by_letter(span: Span) -> bool:
    return span.opened.cause == "letter" and span.opened.run_id is None


def _woken(span: Span, letters: dict[LetterId, LetterQueued]) -> list[str]:
    if span.opened.cause != "letter":
        return []
    waking: list[LetterQueued] = []
    for event in span.events:
        if isinstance(event.fact, StepOpened):
            break
        letter = letters.get(event.fact.letter_id) if isinstance(event.fact, LetterAbsorbed) else None
        if letter is not None and letter.waking:
            waking.append(letter)
    if not waking:
        return [f"turn {span.opened.turn} of {span.session_id} begins by a letter, and shows no waking one"]
    if span.opened.root_run_id not in [letter.root_run_id for letter in waking]:
        return [f"turn {span.opened.turn} of {span.session_id} belongs to a root run that none of its letters names"]
    return []


def check_deliveries(log: LogView) -> list[str]:
    """A settlement goes home at most once; by letter where nobody awaits it; before its parent's next step."""
    problems: list[str] = []
    steps = _step_positions(log)
    for story in log.stories.values():
        homes = story.homes_before(log.events[-1].position + 1)
        if homes > 1 or len(story.letters) > 1 or (story.letters and story.collected_at):
            problems.append(
                f"run {story.run_id} goes home more than once: {len(story.letters)} letters, "
                f"{len(story.absorbed_at)} times absorbed, {len(story.collected_at)} times collected"
            )
        if story.settled is not None:
            problems += _owed(log, story, story.settled, steps.get(story.settled.parent_id, []))
        problems += [at(letter, text) for letter in story.letters for text in _pulled(log, letter)]
    return problems + _collections(log)


def _pulled(log: LogView, letter: Event) -> list[str]:
    """Under `pull` results lie ready until they are fetched, or handed over when a held turn has none to wait for."""
    policy = log.policy(letter.root_id, letter.position)
    if policy["result.delivery"] != "pull":
        return []
    if log.turn_at(letter.session_id, letter.position) is None or policy["result.turn_end"] != "hold_open":
        return ["a result comes by letter, result.delivery is pull, and no turn is held open for it"]
    return [
        f"results are handed over while run {story.run_id} is open"
        for story in log.below.get(letter.session_id, [])
        if story.open_at(letter.position) and not story.parked_at(letter.position)
    ]


def _step_positions(log: LogView) -> dict[SessionId, list[int]]:
    return {
        session_id: [event.position for event in events if isinstance(event.fact, StepOpened)]
        for session_id, events in log.by_session.items()
    }


def _owed(log: LogView, story: Story, settled: RunSettled, steps: list[int]) -> list[str]:
    delivery = story.queued.spec.delivery if story.queued is not None else "letter"
    if delivery == "handle" or log.policy(settled.root_id, story.settled_at)["result.delivery"] == "pull":
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
        for run_id in event.fact.carries if isinstance(event.fact, ToolFinished) else ():
            story = log.story(run_id)
            if story.settled is None or story.settled_at > event.position:
                problems.append(at(event, f"it carries home run {run_id}, which is not settled"))
            elif story.settled.parent_id != event.session_id:
                problems.append(at(event, f"it carries home run {run_id} of another parent"))
    return problems
