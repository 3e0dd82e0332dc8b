# What there is to do here; `make help` lists it. Each target installs what it needs first (scripts/setup).

export PATH := $(HOME)/.cargo/bin:$(PATH)
MUSTER := target/release/muster

.PHONY: demo test build help

demo: ## shows on this machine what waking costs and what muster gives back: out/report.html
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@scripts/demo

test: ## formats checked, lints denied, every test run
	@scripts/setup test
	@scripts/test

build: ## builds target/release/muster, with BPF where this machine can
	@scripts/setup build
	cargo build --release --package muster $$(scripts/features)

.PHONY: fuzz
fuzz: ## feeds random input to every parser; SECONDS_EACH=60
	@scripts/fuzz $(or $(SECONDS_EACH),60)

help: ## lists the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
