"""The command: each subcommand is parse → one call on the app → print; it holds no rule of the runtime."""
