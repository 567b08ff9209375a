# Every task of the project. `make help` lists them; continuous integration runs `make test` and nothing else.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
export PATH := $(CURDIR)/node_modules/.bin:$(PATH)

WASM := target/wasm32-unknown-unknown/wasm/antiphon_core_wasm.wasm
ENGINE := web/src/main/engine.wasm
ring_sources := $(shell find packages/ring/src packages/ring/*.json -type f 2>/dev/null)
web_sources := $(shell find web -path web/dist -prune -o -path web/test -prune -o -path '*/node_modules' -prune \
	-o -name '*.tsbuildinfo' -prune -o -type f -print 2>/dev/null)
# Order of imports included. Not Markdown: aligned tables are wider than a screen.
biome_format := biome check --linter-enabled=false --md-formatter-enabled=false
# ALSA is linked, so its header decides; `make build ALSA=` leaves it out, for servers that do not have the library. JACK needs neither.
ALSA := $(shell pkg-config --exists alsa 2>/dev/null && echo --features antiphon-cli/alsa)
say = @printf '\n== %s\n' $(1)

.PHONY: help run demo build test fmt fmt-check lint types bench examples lab fuzz vectors clean lab-build FORCE

help: ## Lists these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

run: build ## Builds what changed, serves on http://localhost:8080, prints a room link (ARGS="--help" for options)
	@exec target/release/antiphon serve $(ARGS)

demo: build ## The same with three musicians of its own in the room
	@scripts/demo $(ARGS)

build: target/release/antiphon ## Builds everything into one binary, target/release/antiphon

test: ## Installs what the tests need, builds, runs every test, fast ones first (STEPS="lint types" for some)
	@scripts/install-test-packages
	@$(MAKE) build lab-build
	@scripts/test $(STEPS)

fmt: | node_modules/.installed-lock.json .cache/toolchain ## Formats all Rust and TypeScript
	cargo fmt --all
	cargo fmt --manifest-path fuzz/Cargo.toml
	$(biome_format) --write .

fmt-check: | node_modules/.installed-lock.json .cache/toolchain
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	$(biome_format) .

lint: | node_modules/.installed-lock.json .cache/toolchain ## Looks for mistakes: clippy, rustdoc's links, Biome
	cargo clippy --workspace --all-targets --locked $(ALSA) -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps --document-private-items --locked $(ALSA)
	biome lint --error-on-warnings .

types: .cache/ring $(ENGINE) ## Type-checks all TypeScript, each thread with its own globals
	tsc -b web web/test lab packages/ring/test lab/test

bench: build lab-build ## Measures on this machine: ring, engine, mixer, mouth to ear (keeps the last under results/)
	node packages/ring/bench/bench.mjs
	cargo bench --locked -p antiphon-core
	cargo bench --locked -p antiphon-server --bench mixer
	node lab/dist/lab.js m2e --setups A,RTC,Antiphon $(ARGS)

examples: .cache/toolchain ## Writes sounds with lost packets, before and after, to listen to (ARGS="FOLDER --json FILE")
	cargo run --locked --release -p antiphon-core --example listen -- $(ARGS)

lab: build lab-build ## Runs the lab (EXPERIMENT=m2e for one, ARGS="--quick" for a smoke run): reports under results/
	@scripts/install-test-packages
	node lab/dist/lab.js $(EXPERIMENT) $(ARGS)

fuzz: .cache/toolchain ## Runs every fuzz target, 60 s each (SECONDS_EACH=600 for longer)
	@scripts/fuzz $(or $(SECONDS_EACH),60)

vectors: .cache/toolchain ## Writes the golden files again: review the difference
	cargo run --locked -p antiphon-core --example vectors

clean: ## Removes all that was built, except node_modules
	rm -rf target .cache web/dist packages/ring/dist lab/dist $(ENGINE) fuzz/target
	find web packages lab -name node_modules -prune -o -name '*.tsbuildinfo' -exec rm {} +

# What follows builds only what changed. Cargo finds its own changes, so it is always asked, and
# its result is copied only when it differs.

.cache/toolchain: rust-toolchain.toml scripts/install-toolchain
	$(call say,'Rust toolchain and Node')
	@scripts/install-toolchain
	@mkdir -p $(@D) && touch $@

# Exactly what the lock file says, unless that is already installed. Not `npm ci`: it refuses a lock file that lacks other
# platforms' optional packages, and npm leaves them out when its registry does not have them.
node_modules/.installed-lock.json: package-lock.json | .cache/toolchain
	@if ! cmp -s $< $@; then printf '\n== npm packages\n'; npm install --no-save; fi
	@cp $< $@

.cache/ring: node_modules/.installed-lock.json $(ring_sources)
	$(call say,'ring buffer')
	tsc -b packages/ring
	@mkdir -p $(@D) && touch $@

$(ENGINE): FORCE | .cache/toolchain
	$(call say,'engine for the browser')
	cargo build --locked --profile wasm -p antiphon-core-wasm --target wasm32-unknown-unknown
	@cmp -s $(WASM) $@ || cp $(WASM) $@

web/dist/index.html: .cache/ring $(ENGINE) $(web_sources)
	$(call say,'web app')
	cd web && vite build

target/release/antiphon: web/dist/index.html FORCE
	$(call say,'server $(if $(ALSA),with,without) ALSA')
	cargo build --locked --release -p antiphon-cli $(ALSA)

lab-build: .cache/ring
	$(call say,'lab')
	tsc -b lab
	cargo build --locked --release -p antiphon-device -p antiphon-netem

FORCE:
