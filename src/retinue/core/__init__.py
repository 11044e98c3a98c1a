"""The pure part: facts, folds and decisions. It never awaits, reads a clock, draws chance or does I/O."""
