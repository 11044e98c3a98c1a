"""`runs message`: tells a child something through the owner, or as the owner until its tree rests; it runs nothing."""

import asyncio
from functools import partial
from typing import Any, Final

from retinue.app import Runtime, ThreadExecutor, run_async
from retinue.cli import printing
from retinue.cli.asking import owners_socket, require_record
from retinue.cli.leading import INTERRUPTED, Leading, leave_nothing_behind
from retinue.cli.lists import show_run
from retinue.cli.opening import command_line, require_utf8
from retinue.cli.options import Where
from retinue.cli.owning import OWNER_CHANGE_MAX_S, PAUSE_S, owning
from retinue.cli.reading import is_text
from retinue.cli.showing import Lines
from retinue.cli.stops import Stops
from retinue.cli.watch import Tree
from retinue.control import call_owner, message_run
from retinue.core.errors import RetinueError, not_found
from retinue.core.ids import RunId
from retinue.settings import Settings, read_settings

METHOD: Final = "runs.message"
ARRIVED: Final = "See with 'retinue runs list' whether it arrived before you send it again."


def runs_message(run_id: str, text: str, options: Where) -> int:
    """Send a message to a child and print the run that takes it; without an owner after its tree rests."""
    if not is_text(run_id):
        raise not_found("run", run_id)
    require_utf8(text, "The message")
    settings = read_settings(options.data_dir)
    require_record(settings, "run", run_id)
    return run_async(_sent(settings, {"id": run_id, "text": text}, as_json=options.json))


async def _sent(settings: Settings, ask: dict[str, str], *, as_json: bool) -> int:
    """Print the Run, whoever the owner is: it may come or go before we ask, but a message is sent once."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + OWNER_CHANGE_MAX_S
    while True:
        socket = owners_socket(settings)
        try:
            if socket is None:
                return await _led(settings, ask, as_json=as_json)
            show_run(await call_owner(socket, METHOD, ask), as_json=as_json)
        except RetinueError as error:
            if error.code == "stopping" and socket is not None:
                raise RetinueError("stopping", error.detail, ARRIVED) from error
            if error.code != "store_owned" or loop.time() > give_up_s:
                raise
        else:
            return 0
        await asyncio.sleep(PAUSE_S)


async def _led(settings: Settings, ask: dict[str, str], *, as_json: bool) -> int:
    """Send it as the owner, and stay until the tree rests: leaving sooner would interrupt the run at once."""
    stops = Stops()
    writer = ThreadExecutor()
    try:
        with stops.listening():
            made = partial(Runtime, settings, command=command_line())
            async with owning(made, settings.data_dir, stops) as runtime:
                run = await runtime.run(await runtime.kernel.scheduler.resolve(ask["id"], None))
                feed = runtime.kernel.bus.subscribe(run.root_id, after=await runtime.kernel.record.position())
                row = await runtime.session_row(run.root_id)
                leading = Leading(runtime, run.root_id, feed, Lines(Tree(row.header, run.root_id), writer))
                taken = RunId((await message_run(runtime.kernel, ask))["run_id"])
                shown = partial(_show, leading, writer, as_json=as_json)
                await leading.lead(stops, _ended(leading, taken), shown)
        if leading.unwritten is not None:
            printing.unwritten(leading.unwritten, f"'retinue runs show {taken}' prints it.")
        code = INTERRUPTED if stops.asked else 0
        leave_nothing_behind(code)
        return code
    finally:
        writer.close()


async def _ended(leading: Leading, run_id: RunId) -> dict[str, Any]:
    await leading.rests()
    return (await leading.kernel.scheduler.run(run_id)).to_dict()


async def _show(leading: Leading, writer: ThreadExecutor, body: dict[str, Any], *, as_json: bool) -> None:
    await writer.run(partial(show_run, body, as_json=as_json))
    if leading.answer is not None:
        words = f"The main session went on; 'retinue runs output {leading.root_id}' prints what it said."
        await writer.run(printing.note, words)
