# Commands for people; each says what it does under `make help`.
.DEFAULT_GOAL := help
.PHONY: help demo test e2e bench lint fmt charts peers up down

CARGO ?= cargo

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Plan a change on the bundled example and explain what is seen
	@examples/demo

test: peers lint charts demo ## Everything: lint, charts, the demo, unit tests, end-to-end tests
	@CARGO="$(CARGO)" e2e/run --workspace
	$(CARGO) test --workspace --doc --quiet

e2e: peers ## The end-to-end tests on a real API server with the real controllers
	@CARGO="$(CARGO)" e2e/run

bench: peers ## Measure; figures belong into docs/performance.md
	$(CARGO) bench --workspace

lint: ## Format, clippy, generated files, layers, licences of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) run --quiet --package xtask -- check
	$(CARGO) run --quiet --package xtask -- deny $(if $(filter true,$(CI)),--build)

fmt: ## Format, and regenerate what is generated
	$(CARGO) fmt --all
	$(CARGO) run --quiet --package xtask -- crds

charts: peers ## Lint, render and unit-test the charts
	packages/test

peers: ## Build the real parts that tests run against (once, into a cache outside the work tree)
	@peers/build.sh

up: peers ## Start a local control plane with Flux, a git server and the product
	@$(CARGO) build --package cozy-gitops --package cozy-testenv --bins
	@$(CARGO) run --quiet --package cozy-testenv --bin cozy-dev -- up

down: ## Stop it and leave nothing behind
	@$(CARGO) run --quiet --package cozy-testenv --bin cozy-dev -- down
