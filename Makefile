# Every target is a thin call of a script; the scripts make .venv on their first call. PYTHON=python3.12 chooses one.
.PHONY: help demo test check sim bench docs
SEEDS ?= 1000
export PYTHON

help:
	@echo "make demo          a parent delegates over this repository; needs no key"
	@echo "make test          the whole test suite with the coverage gates"
	@echo "make check         lint, format, types, import layers, tidiness"
	@echo "make sim SEEDS=n   n simulated worlds"
	@echo "make bench         durable appends a second, start-up time"
	@echo "make docs          write the generated parts of docs/ anew"

demo test check bench docs:
	@scripts/$@

sim:
	@scripts/sim $(SEEDS)
