"""What CONTRACT says of runs, turns and letters, over plain dicts; it shares nothing with the code it judges."""

from typing import Any

from tests.core.schedule_twin import Caps, Twin

Row = dict[str, Any]
OPEN = ("queued", "parked", "working", "yielded", "wants")


class Family:
    """Runs and sessions as a person would keep them on paper. Times are whole seconds."""

    def __init__(self, *, holds: bool, rouses: bool) -> None:
        self.line = Twin()
        self.now = 100
        self.runs: dict[str, Row] = {}
        self.sessions: dict[str, Row] = {}
        self.settled: list[str] = []
        self.holds = holds
        """Whether a turn stays open while children are."""
        self.rouses_idle = rouses
        """Whether a letter starts the turn of an idle session."""
        self.switch_on = True
        self.commits = 0
        """Letters of the very commit in which a turn begins are read at its first step, older ones at once."""

    def open_session(self, session: str, root: str, depth: int, parent: str | None = None) -> None:
        self.sessions[session] = {
            "root": root,
            "parent": parent,
            "depth": depth,
            "run": None,
            "turn": None,
            "turns": 0,
            "unread": 0,
            "mail": [],
            "rousing": [],
            "requests": 0,
            "below": 0,
            "text": "",
            "new": True,
        }

    def open_turn(self, session: str, root_run: str, *, prompt: bool = True) -> None:
        """A turn begins with its instruction, where there is one, and every letter that lay there."""
        row = self.sessions[session]
        row.update(turn=root_run, requests=0, below=0, text="", rousing=[], new=False)
        row["turns"] += 1
        row["unread"] = self.absorb(session) + prompt

    # ------------------------------------------------------------------------------------------ who is there

    def kids(self, session: str) -> list[str]:
        """The open runs of a session's children, in the order they were accepted."""
        return [run for run, row in self.runs.items() if row["parent"] == session and row["state"] in OPEN]

    def of_child(self, session: str) -> list[str]:
        return [run for run, row in self.runs.items() if row["session"] == session and row["state"] in OPEN]

    def below(self, session: str) -> list[str]:
        """Every open run below a session."""
        found = self.kids(session)
        for child in {row["session"] for row in self.runs.values() if row["parent"] == session}:
            found += self.below(child)
        return found

    def in_memory(self, session: str) -> bool:
        row = self.sessions[session]
        needed = row["new"] or row["turn"] is not None or self.rouses(session)
        if needed or self.kids(session) or self.of_child(session):
            return True
        return any(self.in_memory(kid) for kid, other in self.sessions.items() if other["parent"] == session)

    def rouses(self, session: str) -> bool:
        """Whether letters will start a turn of an idle session."""
        row = self.sessions[session]
        if row["turn"] is not None or not row["rousing"] or not self.rouses_idle:
            return False
        return row["parent"] is None or self.may_continue(session)

    def may_continue(self, session: str) -> bool:
        continuable = any(row["continuable"] for row in self.runs.values() if row["session"] == session)
        return continuable and not self.of_child(session) and self.switch_on

    def commit(self) -> None:
        """A commit begins; whoever left memory with the last one is woken by no letter that it had."""
        self.commits += 1
        for session, row in self.sessions.items():
            if not self.in_memory(session):
                row["rousing"] = []

    def owes(self, session: str) -> bool:
        """Whether a turn that would complete now is not over: input, waking letters, open children, results."""
        row = self.sessions[session]
        if row["unread"] or any(letter["waking"] for letter in row["mail"]):
            return True
        waited_for = [run for run in self.kids(session) if self.runs[run]["state"] != "parked"]
        return self.holds and bool(waited_for or any(letter["of"] for letter in row["mail"]))

    # --------------------------------------------------------------------------------------------- new runs

    def spawn(self, run: str, session: str, parent: str, delivery: str, *, continuable: bool) -> list[str]:
        self.commit()
        home = self.sessions[parent]
        common = {"parent": parent, "root": home["root"], "depth": home["depth"] + 1, "continuable": continuable}
        return self._accept(run, {**common, "session": session, "root_run": home["turn"], "delivery": delivery})

    def send(self, run: str, session: str, new_root_run: str) -> list[str]:
        """The next run of a child; what was parked goes before it."""
        self.commit()
        first = next(row for row in self.runs.values() if row["session"] == session)
        for other in self.of_child(session):
            if self.runs[other]["state"] == "parked":
                self.runs[other]["state"] = "queued"
                self.line.unpark(other)
        root_run = self.sessions[first["parent"]]["turn"] or new_root_run
        return self._accept(run, {**self._same_child(first), "root_run": root_run})

    def rouse(self, run: str, session: str) -> list[str]:
        """One turn for the letters of an idle session; it belongs to the root run of the oldest."""
        self.commit()
        root_run = self.sessions[session]["rousing"][0]["root_run"]
        if self.sessions[session]["parent"] is None:
            self.open_turn(session, root_run, prompt=False)
            return []
        first = next(row for row in self.runs.values() if row["session"] == session)
        return self._accept(run, {**self._same_child(first), "root_run": root_run, "prompt": False})

    def _same_child(self, row: Row) -> Row:
        kept = ("parent", "root", "depth", "continuable", "session")
        return {**{key: row[key] for key in kept}, "delivery": "letter"}

    def _accept(self, run: str, row: Row) -> list[str]:
        place = len(self.line.queues.get(row["root"], [])) + 1
        fresh = {"state": "queued", "since": self.now, "worked": 0, "queued_s": None, "home": False, "place": place}
        self.runs[run] = {"prompt": True, **row, **fresh}
        self.line.wait(run, row["root"], row["parent"], session=row["session"])
        return self.admit()

    def admit(self) -> list[str]:
        admitted = self.line.admit()
        for run in admitted:
            row = self.runs[run]
            if row["state"] == "queued":
                row["queued_s"] = self.now - row["since"]
                if row["session"] not in self.sessions:
                    self.open_session(row["session"], row["root"], row["depth"], row["parent"])
                self.open_turn(row["session"], row["root_run"], prompt=row["prompt"])
                self.sessions[row["session"]]["run"] = run
            row.update(state="working", since=self.now)
        return admitted

    def set_caps(self, root: str, caps: Caps) -> list[str]:
        self.commit()
        self.line.caps[root] = caps
        return self.admit()

    # ------------------------------------------------------------------------------------------------ slots

    def give_up_slot(self, run: str) -> list[str]:
        row = self.runs[run]
        self.commit()
        row["worked"] += self.now - row["since"]
        row["state"] = "yielded"
        self.line.rest(run)
        return self.admit()

    def want_slot(self, run: str) -> list[str]:
        row = self.runs[run]
        self.commit()
        row["state"] = "wants"
        self.line.wait(run, row["root"], row["parent"], front=True)
        return self.admit()

    def elapsed(self, run: str) -> int:
        """Working time: neither the queue nor a wait for own descendants."""
        row = self.runs[run]
        return row["worked"] + (self.now - row["since"] if row["state"] == "working" else 0)

    # ---------------------------------------------------------------------------------------------- endings

    def settle(self, run: str, *, status: str, reason: str, waking: bool = True) -> list[str]:
        self.commit()
        row = self.runs[run]
        ran = row["state"] not in ("queued", "parked")
        row["elapsed"] = self.elapsed(run) if ran else None
        row["tree"] = 0
        if ran:
            mine = self.sessions[row["session"]]
            row["tree"] = mine["requests"] + mine["below"]
            self.leave_turn(row["session"], completed=status == "completed")
        else:
            row["queued_s"] = self.now - row["since"]
        row["state"] = "ended"
        self.settled.append(run)
        home = self.sessions[row["parent"]]
        if home["turn"] == row["root_run"]:
            home["below"] += row["tree"]
        if row["delivery"] == "letter":
            self.post(row["parent"], root_run=row["root_run"], of=run, waking=waking)
        self.line.leave(run)
        if ran and reason == "interrupted":
            for other in self.of_child(row["session"]):
                if self.runs[other]["state"] == "queued":
                    self.runs[other]["state"] = "parked"
                    self.line.park(other)
        return self.admit()

    def leave_turn(self, session: str, *, completed: bool) -> None:
        """The turn closes; results that a call awaited and never got become letters, and late ones may rouse it."""
        self.commit()
        row = self.sessions[session]
        for run in self.settled:
            kid = self.runs[run]
            awaited = kid["parent"] == session and kid["delivery"] == "await"
            if awaited and not kid["home"] and run not in [letter["of"] for letter in row["mail"]]:
                self.post(session, root_run=kid["root_run"], of=run, waking=kid["waking"])
        row.update(turn=None, unread=0, run=None)
        if completed:
            row["rousing"] = [letter for letter in row["mail"] if letter["waking"]]

    # ---------------------------------------------------------------------------------------------- letters

    def post(self, session: str, *, root_run: str, of: str | None, waking: bool) -> None:
        row = self.sessions[session]
        letter = {"root_run": root_run, "of": of, "waking": waking, "commit": self.commits}
        row["mail"].append(letter)
        if row["turn"] is None and waking:
            row["rousing"].append(letter)

    def step(self, session: str, text: str) -> None:
        self.commit()
        row = self.sessions[session]
        row["requests"] += 1
        row["unread"] = 0
        row["text"] = text or row["text"]
        self.absorb(session)

    def absorb(self, session: str) -> int:
        row = self.sessions[session]
        there = [letter for letter in row["mail"] if letter["commit"] < self.commits]
        for letter in there:
            if letter["of"] is not None:
                self.runs[letter["of"]]["home"] = True
        row["mail"] = row["mail"][len(there) :]
        return len(there)

    def remembered(self) -> set[str]:
        """Runs that memory still needs: open ones, and results that are not home while their parent is there."""
        return {
            run
            for run, row in self.runs.items()
            if row["state"] in OPEN or (not row["home"] and self.in_memory(row["parent"]))
        }
