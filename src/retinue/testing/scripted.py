"""The scripted model as part of the public test kit; it adds nothing to the one that `scripted:FILE` uses."""

from retinue.models.script import Script, script_of
from retinue.models.scripted import ScriptedModel, load_script

__all__ = ["Script", "ScriptedModel", "load_script", "script_of"]
