# Two commands: `make demo` and `make test`. Both install what they need into .venv first.
SHELL := /bin/sh
PYTEST := .venv/bin/python -m pytest

.PHONY: demo test check scenarios nightly setup clean

demo: setup
	@$(PYTEST) -q scenarios/test_packet_loss.py scenarios/test_hard_disconnect.py scenarios/test_kill_during_save.py

test: setup check
	@$(PYTEST) tests
	@$(PYTEST) scenarios

check: setup
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

scenarios: setup
	@$(PYTEST) scenarios

nightly: setup
	@$(PYTEST) --nightly tests
	@$(PYTEST) --nightly --chaos-repeat=5 scenarios

setup:
	@tools/setup

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis reports/2*
