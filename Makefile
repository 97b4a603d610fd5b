# Two promises: `make demo` and `make test` work on a fresh machine and do all their own set-up.
SHELL := bash
BIN := .venv/bin
PROMPT := a red ball bouncing on a blue floor

.PHONY: demo serve test quick clean

demo: ## write demo.mp4 with the embedded demo checkpoint
	@scripts/setup
	$(BIN)/yellowsound generate "$(PROMPT)" --checkpoint demo --seed 1 --out demo.mp4 --overwrite

serve: ## a working server with the demo checkpoint on http://127.0.0.1:8094
	@scripts/setup
	$(BIN)/yellowsound serve

test: ## everything that needs no GPU: lint, types, all tests, browser included
	@scripts/test

quick: ## the part for every save, under three minutes
	@scripts/test quick

clean:
	rm -rf .venv demo.mp4 .mypy_cache .ruff_cache .pytest_cache .hypothesis
