"""Pure decisions: each reads the head and returns facts and effects; none changes the head or acts."""
