"""Draws the live tree on a terminal's stderr, from a thread of its own; it takes no event and prints no result."""

from contextlib import suppress
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retinue.cli.plain import duration, line, tokens
from retinue.cli.watch import Row, Tree

REFRESHES_PER_S: Final = 4
ROWS_LEFT_FREE: Final = 5
"""Lines of the terminal that stay free, so that it never scrolls while it is redrawn."""
WIDE_CHARS: Final = 100
"""Columns of a terminal from which on the model has a column too; the first line names the root's anyway."""
NAME_PART: Final = 3
"""A name takes at most this part of the width."""
_MODEL_CHARS: Final = 28
_HEADS: Final = tuple(Text(head, "dim") for head in ("", "status", "time", "model", "steps", "tokens", ""))
_MARKS: Final = {
    "queued": ("○", "dim"),
    "running": ("●", "cyan"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("■", "yellow"),
    "interrupted": ("■", "yellow"),
}


class LiveTree:
    """A tree that redraws itself a few times a second between `start` and `stop`."""

    def __init__(self, tree: Tree) -> None:
        """Draw nothing yet."""
        self._tree = tree
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            get_renderable=self._draw,
            console=self._console,
            refresh_per_second=REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def start(self) -> None:
        """Begin to draw."""
        with suppress(OSError):
            self._live.start(refresh=True)

    def stop(self) -> None:
        """Draw once more, leave the last picture standing, show the cursor again; blocks for an instant."""
        with suppress(OSError):  # a terminal that was closed has nothing to be given back
            self._live.stop()

    def _draw(self) -> RenderableType:
        return draw(self._tree, self._console.width, max(3, self._console.height - ROWS_LEFT_FREE))


def draw(tree: Tree, width: int, rows_max: int) -> Table:
    """Return the table of a tree, at most `rows_max` rows: the open ones first, what is left out counted."""
    wide = width >= WIDE_CHARS
    rows = tree.ordered()
    shown = _chosen(rows, rows_max)
    lines = [_HEADS, *((_name(depth, row, width // NAME_PART), *_cells(tree, row)) for depth, row in shown)]
    if not wide:
        lines = [(*cells[:3], *cells[4:]) for cells in lines]
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    left = width
    for column in range(len(lines[0]) - 1):
        # Numbers and states are never cut: only what it does gets the width that is left.
        needed = max(cells[column].cell_len for cells in lines)
        grid.add_column(justify="left" if column < 2 else "right", no_wrap=True, width=needed)
        left -= needed + 2
    grid.add_column(no_wrap=True, overflow="ellipsis", width=max(8, left))
    for cells in lines:
        grid.add_row(*cells)
    if len(shown) < len(rows):
        grid.add_row(Text(f"  … {len(rows) - len(shown)} more", style="dim"))
    return grid


def _chosen(rows: list[tuple[int, Row]], rows_max: int) -> list[tuple[int, Row]]:
    if len(rows) <= rows_max:
        return rows
    order = sorted(range(len(rows)), key=lambda n: (n > 0, rows[n][1].status != "running", not rows[n][1].is_open, -n))
    return [rows[n] for n in sorted(order[: rows_max - 1])]


def _name(depth: int, row: Row, chars_max: int) -> Text:
    mark, style = _MARKS.get(row.status, ("?", "dim"))
    name = line(row.name, max(8, chars_max - 2 * depth - 2))
    return Text.assemble("  " * depth, (mark, style), " ", (name, "bold" if depth == 0 else ""))


def _cells(tree: Tree, row: Row) -> tuple[Text, ...]:
    """Return status, time, model, steps, tokens, and what it does; a child's model only where it is another one."""
    _, style = _MARKS.get(row.status, ("?", "dim"))
    seconds = row.seconds()
    same = row is not tree.root and row.model == tree.root.model
    return (
        Text(row.status, style),
        Text("" if seconds is None else duration(seconds)),
        Text("" if same else line(row.model, _MODEL_CHARS), "dim"),
        Text(str(row.steps), "dim"),
        Text(tokens(row.usage).removesuffix(" tokens"), "dim"),
        Text(line(tree.doing(row), 300), "" if row.is_open else style),
    )
