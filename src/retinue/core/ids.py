"""Distinct types for the ids and counters of the log; it never makes one (that is the `Ids` port)."""

from typing import NewType

SessionId = NewType("SessionId", str)
"""`s_…`: a session."""
RunId = NewType("RunId", str)
"""`r_…`: a run, or a root run (one prompt of a root session and everything it caused)."""
LetterId = NewType("LetterId", str)
"""`l_…`: a letter."""
CallId = NewType("CallId", str)
"""`c_…`: a tool call; our own key, never the provider's."""
OutputId = NewType("OutputId", str)
"""`o_…`: a text stored whole because what was shown of it was cut."""
TurnNo = NewType("TurnNo", int)
"""Counts the turns of one session from 1."""
StepNo = NewType("StepNo", int)
"""Counts the steps of one turn from 1."""
Seq = NewType("Seq", int)
"""Contiguous from 1 within one session's log."""
Position = NewType("Position", int)
"""Strictly rising over the whole store."""
Digest = NewType("Digest", str)
"""Lower-case SHA-256 of a blob that requests refer to."""
