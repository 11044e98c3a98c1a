"""The shell around the pure core: it commits, waits and acts; it decides nothing itself."""
