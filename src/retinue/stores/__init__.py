"""Where the log lives on disk: the SQLite store and the owner's lock; it never decides what is logged."""
