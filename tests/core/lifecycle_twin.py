"""What CONTRACT says of runs, turns and letters, over plain dicts; it shares nothing with the code it judges."""

from typing import Any

from tests.core.schedule_twin import Twin

Row = dict[str, Any]


class Family:
    """Runs and sessions as a person would keep them on paper. Times are whole seconds."""

    def __init__(self) -> None:
        self.line = Twin()
        self.now = 100
        self.runs: dict[str, Row] = {}
        self.sessions: dict[str, Row] = {}

    def open_session(self, session: str, root: str, depth: int, run: str | None = None) -> None:
        self.sessions[session] = {
            "root": root,
            "depth": depth,
            "run": run,
            "turn": None,
            "turns": 0,
            "steered": 0,
            "mail": [],
            "requests": 0,
            "below": 0,
            "text": "",
            "new": True,
        }

    def open_turn(self, session: str, root_run: str) -> None:
        self.sessions[session].update(turn=root_run, requests=0, below=0, text="", steered=1, new=False)
        self.sessions[session]["turns"] += 1

    def kids(self, session: str) -> list[str]:
        return [run for run, row in self.runs.items() if row["parent"] == session and row["state"] != "ended"]

    def in_memory(self, session: str) -> bool:
        row = self.sessions[session]
        return row["new"] or row["turn"] is not None or bool(self.kids(session))

    def owes(self, session: str) -> bool:
        """Whether a turn that would complete now is not over: input, open children, uncollected results."""
        row = self.sessions[session]
        return bool(row["steered"] or self.kids(session) or row["mail"])

    def spawn(self, run: str, session: str, parent: str, delivery: str) -> list[str]:
        home = self.sessions[parent]
        self.runs[run] = {
            "parent": parent,
            "session": session,
            "root": home["root"],
            "root_run": home["turn"],
            "depth": home["depth"] + 1,
            "delivery": delivery,
            "state": "queued",
            "since": self.now,
            "worked": 0,
            "queued_s": None,
            "home": False,
            "place": len(self.line.queues.get(home["root"], [])) + 1,
        }
        self.line.wait(run, home["root"], parent)
        return self.admit()

    def admit(self) -> list[str]:
        admitted = self.line.admit()
        for run in admitted:
            row = self.runs[run]
            if row["state"] == "queued":
                row["queued_s"] = self.now - row["since"]
                self.open_session(row["session"], row["root"], row["depth"], run)
                self.open_turn(row["session"], row["root_run"])
            row.update(state="working", since=self.now)
        return admitted

    def give_up_slot(self, run: str) -> list[str]:
        row = self.runs[run]
        row["worked"] += self.now - row["since"]
        row["state"] = "yielded"
        self.line.leave(run)
        return self.admit()

    def want_slot(self, run: str) -> list[str]:
        row = self.runs[run]
        row["state"] = "wants"
        self.line.wait(run, row["root"], row["parent"], front=True)
        return self.admit()

    def elapsed(self, run: str) -> int:
        """Working time: neither the queue nor a wait for own descendants."""
        row = self.runs[run]
        return row["worked"] + (self.now - row["since"] if row["state"] == "working" else 0)

    def settle(self, run: str) -> list[str]:
        row = self.runs[run]
        row["elapsed"] = self.elapsed(run)
        if row["queued_s"] is None:
            row["queued_s"] = self.now - row["since"]
            row["elapsed"] = None
        row["tree"] = 0
        if row["session"] in self.sessions:
            mine = self.sessions[row["session"]]
            row["tree"] = mine["requests"] + mine["below"]
            self.leave_turn(row["session"])
        row["state"] = "ended"
        home = self.sessions[row["parent"]]
        if home["turn"] == row["root_run"]:
            home["below"] += row["tree"]
        if row["delivery"] == "letter":
            home["mail"].append(run)
        self.line.leave(run)
        return self.admit()

    def leave_turn(self, session: str) -> None:
        """The turn closes; results that a call awaited and never got become letters."""
        row = self.sessions[session]
        row.update(turn=None, steered=0)
        for run, kid in self.runs.items():
            awaited = kid["parent"] == session and kid["delivery"] == "await" and kid["state"] == "ended"
            if awaited and not kid["home"] and run not in row["mail"]:
                row["mail"].append(run)

    def step(self, session: str, text: str) -> None:
        row = self.sessions[session]
        row["requests"] += 1
        row["steered"] = 0
        row["text"] = text or row["text"]
        self.absorb(session)

    def absorb(self, session: str) -> None:
        for run in self.sessions[session]["mail"]:
            self.runs[run]["home"] = True
        self.sessions[session]["mail"] = []

    def remembered(self) -> set[str]:
        """Runs that memory still needs: open ones, and results that are not home while their parent is there."""
        return {
            run
            for run, row in self.runs.items()
            if row["state"] != "ended" or (not row["home"] and self.in_memory(row["parent"]))
        }
