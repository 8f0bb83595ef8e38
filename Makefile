# Two commands: `make demo` and `make test`. Both install what they need into .venv first.
SHELL := /bin/sh
PYTEST := .venv/bin/python -m pytest
TESTS := tools/in-scratch $(PYTEST)

.PHONY: demo test check scenarios nightly setup engine clean

demo: setup
	@$(PYTEST) -q scenarios/test_packet_loss.py scenarios/test_hard_disconnect.py scenarios/test_kill_during_save.py

test: setup engine check
	@$(TESTS) tests
	@$(PYTEST) scenarios

check: setup
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

scenarios: setup
	@$(PYTEST) scenarios

nightly: setup engine
	@$(TESTS) --nightly tests
	@$(PYTEST) --nightly --chaos-repeat=5 scenarios
	@$(PYTEST) --chaos-repeat=20 scenarios/test_kill_during_save.py

setup:
	@tools/setup

engine:
	@tools/engine

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis reports/2*
