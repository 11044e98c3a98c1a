"""Lets `python -m retinue` be the command; it does nothing else."""

from retinue.cli.main import main

if __name__ == "__main__":
    main()
