"""Processes to be killed: one rewrites a run's row at full speed, one delegates for ever; they hold no test."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

import retinue
from retinue.core.events import MessageAssistant, StepClosed, StepOpened, Usage
from retinue.core.ids import Digest, SessionId, StepNo, TurnNo
from retinue.core.run import Run
from retinue.models.scripted import ScriptedModel
from retinue.ports import Batch
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.samples import Numbering

RUN = "r_1"
"""The run whose snapshot is rewritten."""
TEXT_CHARS = 40_000


def text_of(version: int) -> str:
    """Return the text of a snapshot: every part of it tells its version."""
    part = f"{version:08d} "
    return part * (TEXT_CHARS // len(part))
