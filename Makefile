# CI runs these targets. `make help` lists them.
.DEFAULT_GOAL := help
CARGO ?= cargo
FUZZ_SECONDS ?= 300
# Every file is a target.
FUZZ_TARGETS ?= $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))
ROUNDS ?= 5
SECONDS ?= 4
COMPARED = --rounds $(ROUNDS) --seconds $(SECONDS) $(addprefix --only ,$(ONLY)) $(if $(PROGRAMS),--programs "$(PROGRAMS)")
DURATION ?= 600
DEPLOYMENT ?= cluster
IMAGE ?= tollgate:latest
OUTPUT ?= file
PROFILE ?= release

.PHONY: help run check test test-all requirements tools binary unit mutants outages leases e2e envoy-versions helm helm-goldens generated-docs console-images compat drill image pgo image-check release-check release-archives release-chart workflows lint test-rules format docs deny bench bench-redis bench-cluster bench-admin bench-lookup bench-algorithms idle instructions profile soak ghz fuzz ci

# The first targets of the list.
FIRST := run|check|test
help: ## list the targets
	@targets() { grep -hE '^[a-z0-9-]+:.*##' Makefile | grep $$1E "^($(FIRST)):" | sed 's/:.*## /\t/' | expand -t 18; }; targets -; echo; targets -v

run: ## build and serve the sample rules of config/
	$(CARGO) run --profile quick-release

check: ## the quick check, Rust only: format, clippy, unit and in-process tests
	@tests/requirements.sh rust lint cc
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) test --lib --bins --test architecture
	$(CARGO) test --test suite -- in_process:: laws:: compat:: keys:: differences:: pages:: wire::

test: requirements ## all tests that need no system packages; installs what they need into .tools
	tests/run.py unit e2e helm

test-all: requirements ## all tests: also those that need system packages, all mutants, and long faults
	tests/run.py

requirements:
	@tests/requirements.sh linux rust cc python

tools: requirements ## install what `make test` needs into .tools: Redis, Valkey, Envoy, Go, and Helm, which Go builds
	tests/tools.py suite e2e helm

# As the tests build it: without the features of their dependencies, everything would be compiled a second time.
binary:
	$(CARGO) test --quiet --no-run --test architecture

unit: requirements ## unit tests, and the suite that runs the binary on Redis
	tests/run.py unit

e2e: requirements ## end-to-end tests with a real Envoy
	tests/run.py e2e

envoy-versions: requirements ## check the tables of docs/envoy.md on each Envoy version; takes three minutes
	@$(MAKE) --no-print-directory binary
	tests/envoy_versions.py

helm: requirements ## test the chart without a cluster: rendered manifests, and the binary with them
	tests/run.py helm

generated-docs: ## rewrite settings.md, metrics.md, schema and the bounds of guarantees.md in docs
	REWRITE=1 $(CARGO) test --test suite -- generated_docs::

drill: requirements ## how soon each fault of an on-call rota is named: five minutes, needs promtool; REWRITE=1
	@tests/tools.py suite e2e helm
	@$(MAKE) --no-print-directory binary
	PYTHONDONTWRITEBYTECODE=1 .tools/python/bin/python3 tests/drill/drill.py

console-images: requirements ## write the pictures of docs/console.md, and hashes of their views. Needs chromium
	@$(MAKE) --no-print-directory binary
	tests/console_images.py docs/images
	REWRITE=1 $(CARGO) test --test suite -- console_pictures::

helm-goldens: ## rewrite the expected manifests, and the table of the chart's README
	REWRITE=1 $(MAKE) helm

mutants: requirements ## change each token of the Lua scripts; a test must fail. MUTANTS_OF=file.lua, MUTANTS_LISTED=1
	@tests/tools.py suite
	$(CARGO) test --test suite every_mutant -- --ignored --nocapture

leases: ## random histories of leases, optimized, and long races: HISTORIES (100,000), SEED (1)
	RACE_ROUNDS=20 HISTORIES=$(or $(HISTORIES),100000) SEED=$(or $(SEED),1) $(CARGO) test --config profile.dev.package.tollgate.opt-level=2 --test suite -- --nocapture in_process::leases::simulation:: system::leases::races::

outages: ## random histories of outages and charges: HISTORIES (10,000 each, seven minutes), SEED (1)
	PROPTEST_CASES=$(or $(HISTORIES),10000) PROPTEST_RNG_SEED=$(or $(SEED),1) $(CARGO) test --test suite -- in_process::outages:: in_process::charges::

compat: ## compare with envoyproxy/ratelimit, recorded and in random rounds: KIT=path, REFERENCE=path
ifdef KIT
	$(CARGO) build
	python3 tests/compat/judge.py --kit "$(KIT)" $(if $(REFERENCE),--reference "$(REFERENCE)") --rounds $(or $(COMPAT_ROUNDS),200) --seed $(or $(SEED),1)
else
	$(CARGO) test --test suite -- compat:: differences:: wire:: mixed_fleet::
	@echo "These were the cases of tests/suite/cases. With a conformance kit, recorded responses are replayed as well: make compat KIT=path"
	@echo "With a binary of envoyproxy/ratelimit, random rounds are compared: make compat KIT=path REFERENCE=path. To build one:"
	@echo "  git clone https://github.com/envoyproxy/ratelimit && cd ratelimit && CGO_ENABLED=0 go build -o ratelimit ./src/service_cmd"
endif

image: ## build the image for amd64 and arm64; IMAGE=name:tag OUTPUT=file|push|load. Needs docker with buildx
	deploy/image/make.sh "$(IMAGE)" "$(OUTPUT)"

pgo: ## build the image's binary into target/pgo, profile-guided. Needs redis-server and llvm-tools of rustup
	deploy/image/build.sh $(if $(filter aarch64 arm64,$(shell uname -m)),arm64,amd64) target/pgo

image-check: ## check the image without a container engine: contents, size, libraries, bill of materials, start
	@test -x .tools/bin/cargo-cyclonedx || $(CARGO) install --locked --root .tools cargo-cyclonedx@0.5.9
	deploy/image/check.py --profile $(PROFILE)

release-check: ## rehearse a release in target/release-files: VERSION=v0.1.0, PROFILE=dev, BINARY=path
	@tests/tools.py helm
	@test -x .tools/bin/cargo-cyclonedx || $(CARGO) install --locked --root .tools cargo-cyclonedx@0.5.9
	PYTHONDONTWRITEBYTECODE=1 deploy/image/rehearse.py "$(VERSION)" --profile $(PROFILE) $(if $(BINARY),--binary "$(BINARY)")

release-archives: # a step of .github/workflows/release.yml: VERSION=v0.1.0
	deploy/image/release.sh archives "$(VERSION)"

release-chart: # pushes and signs the chart: VERSION=v0.1.0 REPOSITORY=registry.example.com/charts
	deploy/image/release.sh chart "$(VERSION)" "$(REPOSITORY)"

lint: format docs ## format, clippy and documentation, warnings are errors
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) check --bin tollgate

test-rules: ## the test cases of the sample rules in config/
	tests/run.py test-rules

format: ## check the formatting
	$(CARGO) fmt --check

workflows: ## the workflows of .github and deploy/ci with actionlint
	@tests/tools.py workflows
	.tools/bin/actionlint -shellcheck= -pyflakes= .github/workflows/*.yml deploy/ci/rules.yaml

docs: ## build the API documentation; missing docs and broken links are errors
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" $(CARGO) doc --no-deps --lib --document-private-items

deny: ## check licenses, duplicates and sources with deny.toml; installs cargo-deny into .tools
	@tests/tools.py deny
	.tools/bin/cargo-deny check licenses bans sources

bench: ## compare the memory store with a bare tonic server in one run: see benches/README.md
	benches/run.sh

bench-redis: ## print the table of docs/performance.md: REFERENCE=path, ONLY="zipf", ROUNDS, SECONDS, PROGRAMS, WRITE
	benches/redis.sh "$(REFERENCE)" $(COMPARED) $(if $(WRITE),--write)

bench-cluster: ## compare on a Redis Cluster of three nodes each: REFERENCE=path, ONLY, ROUNDS, SECONDS, PROGRAMS
	benches/redis.sh "$(REFERENCE)" --cluster $(COMPARED)

bench-admin: ## what clients of the admin port do to calls: ROUNDS, SECONDS of each load, PROGRAMS=folder
	benches/admin.py --rounds $(ROUNDS) --seconds $(SECONDS) $(if $(PROGRAMS),--programs "$(PROGRAMS)")

bench-lookup: ## time to match and to load 100,000 rules
	$(CARGO) bench --bench lookup

bench-algorithms: ## bytes and µs of each algorithm, in memory and on Redis
	$(CARGO) bench --bench algorithms

idle: ## time to start, and memory of the idle service against its bounds, with both stores; needs redis-server
	benches/idle.py

instructions: ## count the instructions of a call, and compare them with the committed ones; REWRITE=1. Needs valgrind
	benches/instructions.py

profile: ## write a flame graph of the service under load: SVG, MEMORY=1, PROGRAMS. Needs perf and redis-server
	benches/flame_graph.py $(if $(SVG),--output "$(SVG)") $(if $(MEMORY),--memory) $(if $(PROGRAMS),--programs "$(PROGRAMS)")

soak: ## a Redis fault every 10 s, for docs/images/soak.svg: DURATION, DEPLOYMENT=single|sentinel|cluster, SEED
	benches/soak.py --deployment $(DEPLOYMENT) --duration $(DURATION) --seed $(or $(SEED),1)

ghz: ## run each load of benches/ghz and compare its count with the service's; installs Go and ghz into .tools
	@tests/tools.py ghz
	benches/ghz/run.py .tools/bin/ghz

fuzz: ## fuzz the parsers of external input: FUZZ_SECONDS for each of FUZZ_TARGETS. Needs a nightly toolchain
	@test -x .tools/bin/cargo-fuzz || $(CARGO) install --locked --root .tools cargo-fuzz
	cd fuzz && for target in $(FUZZ_TARGETS); do PATH="$(CURDIR)/.tools/bin:$$PATH" $(CARGO) +nightly fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 || exit 1; done

ci: ## all checks of CI
	.ci/run
