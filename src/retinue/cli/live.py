"""Draws the live tree on a terminal's stderr, from a thread of its own; it takes no event and prints no result."""

from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from retinue.cli.plain import duration, line, steps, tokens
from retinue.cli.watch import Row, Tree

REFRESHES_PER_S: Final = 4
ROWS_LEFT_FREE: Final = 4
"""Lines of the terminal that stay free, so that it never scrolls while it is redrawn."""
WIDE_CHARS: Final = 100
"""Columns of a terminal from which on the model has a column too; the first line names the root's anyway."""
NAME_PART: Final = 3
"""A name takes at most this part of the width."""
_MODEL_CHARS: Final = 28
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
        self._live.start(refresh=True)

    def stop(self) -> None:
        """Draw once more, leave the last picture standing, show the cursor again; blocks for an instant."""
        self._live.stop()

    def _draw(self) -> RenderableType:
        return draw(self._tree, self._console.width, max(3, self._console.height - ROWS_LEFT_FREE))


def draw(tree: Tree, width: int, rows_max: int) -> Table:
    """Return the table of a tree, at most `rows_max` rows: the open ones first, what is left out counted."""
    grid = Table.grid(padding=(0, 2), pad_edge=False)
    wide = width >= WIDE_CHARS
    for right in (False, False, True, *((False,) if wide else ()), True, True):
        grid.add_column(justify="right" if right else "left", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    rows = tree.ordered()
    shown = _chosen(rows, rows_max)
    for depth, row in shown:
        cells = _cells(tree, row)
        grid.add_row(_name(depth, row, width // NAME_PART), *(cells if wide else (*cells[:2], *cells[3:])))
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
        Text(steps(row.steps), "dim"),
        Text(tokens(row.usage), "dim"),
        Text(line(tree.doing(row), 300), "" if row.is_open else style),
    )
