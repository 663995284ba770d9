# The two commands: `make demo` and `make test`. Each installs what is missing and is quick then.
.PHONY: setup demo test check bench clean
SHELL := /bin/bash
PY := .venv/bin/python

setup:
	@./setup.sh

demo: setup
	@.venv/bin/mirrord demo

test: setup
	@cd native && ../.venv/bin/with-cargo cargo test --quiet --locked --workspace
	@$(PY) -m tests

check:
	@./setup.sh check
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	cd native && ../.venv/bin/with-cargo cargo fmt --check
	@# (Up to 1.85, as in Debian, clippy wants parentheses around each shift.)
	cd native && ../.venv/bin/with-cargo cargo clippy --quiet --locked --workspace --all-targets -- \
		-D warnings -A clippy::precedence

bench: setup
	@$(PY) -m benchmarks

clean:
	rm -rf .venv native/target build *.egg-info
