"""The tree budget as CONTRACT section 8 words it, over a plain list of requests; it shares nothing with the ledger."""

from typing import Any

Row = dict[str, Any]


class Twin:
    """Every request that was ever sent, as a person would keep them on paper."""

    def __init__(self) -> None:
        self.requests: list[Row] = []

    def send(self, session: str, reserved: int | None) -> None:
        """`reserved` is null where no limit was set then."""
        self.requests.append({"session": session, "reserved": reserved, "state": "open", "report": None})

    def end(self, session: str, report: int | None) -> Row:
        row = next(row for row in self.requests if row["session"] == session and row["state"] == "open")
        row.update(state="ended", report=report)
        return row

    def spent(self) -> int:
        ended = [row for row in self.requests if row["state"] == "ended"]
        reported = sum(row["report"] for row in ended if row["report"] is not None)
        return reported + sum(row["reserved"] or 0 for row in ended if row["report"] is None)

    def unreported(self) -> int:
        return sum(row["state"] == "ended" and row["report"] is None for row in self.requests)

    def reservations(self) -> dict[str, int]:
        return {
            row["session"]: row["reserved"]
            for row in self.requests
            if row["state"] == "open" and row["reserved"] is not None
        }

    def ask(self, limit: int | None, tokens: int, wanted: int | None, least: int) -> tuple[str, int | None]:
        """Try every output limit from the wanted one down."""
        if limit is None:
            return "grant", None
        if self.spent() >= limit:
            return "over", None
        used = self.spent() + sum(self.reservations().values())
        if wanted is not None and used + tokens + wanted <= limit:
            return "grant", wanted
        if self.reservations():
            return "wait", None
        most = limit if wanted is None else wanted
        floor = least if wanted is None else min(least, wanted)
        for output in range(most, floor - 1, -1):
            if used + tokens + output <= limit:
                return "grant", output
        return "over", None
