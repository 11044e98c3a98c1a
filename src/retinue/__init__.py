"""Retinue: a sub-agent runtime. This module holds the public names and does nothing when imported."""

__all__: list[str] = []
