# What there is to do here; `make help` lists it. Each target installs what it needs first (scripts/setup).

export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: demo test build help
demo: ## shows what waking costs on this machine, and what two programs lose and get back: out/report.html
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@scripts/demo

test: ## checks formats, denies warnings, runs every test
	@scripts/setup test
	@scripts/test

build: ## builds target/release/muster, with BPF where this machine can
	@scripts/setup build
	cargo build --release --package muster $$(scripts/features)

help: ## lists the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

# Campaigns: longer than a test run may take.
SEEDS ?= 100000
KILLS ?= 500
SECONDS_EACH ?= 600

.PHONY: bench bench-engine bench-live campaign-swarm campaign-kills campaign-host campaign-fuzz
bench: build ## simulator: events per second
	cargo bench --package muster-sim

bench-engine: ## simulator's engine beside NeXosim, SimPy and SimGrid
	@scripts/setup build
	benches/engine/setup
	benches/engine/bench

bench-live: build ## thirty real programs under auto and its rivals; half an hour
	benches/live/setup
	benches/live/bench --out out/live-speed.json
	benches/live/phases-bench
	benches/live/overhead

campaign-swarm: build ## SEEDS random machines, programs and remedies in simulation
	MUSTER_SWARM_SEEDS=$(SEEDS) cargo test --release --package muster-sim --test swarm

campaign-kills: build ## KILLS kills of a running muster at random moments
	benches/kill-campaign $(KILLS)

campaign-host: ## a KVM host under QEMU's emulator; muster host apply killed at each write
	@scripts/setup test
	MUSTER_KILLS=all cargo test --release --package muster --test host_rig $$(scripts/features) -- --nocapture

campaign-fuzz: build ## random input to every parser, SECONDS_EACH
	scripts/fuzz $(SECONDS_EACH)
