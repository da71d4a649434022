.DEFAULT_GOAL := help
.PHONY: help run cluster test clients check lint format docs site screenshots bench crash powercut chaos heavy sim mutants fuzz proto grpctools quickstarts hostile compiled compiled-test pythons hooks lock clean \
	scenarios image base image-test compose-test loadtools helmtools helm-test kubetools kube-test

BIN := .venv/bin
# Tests start hundreds of processes; without byte code, each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Set up and start the broker on ./data
	@scripts/setup run
	@exec $(BIN)/alpacamq serve --data-dir data

cluster: ## Set up and start three nodes on this machine, on ./data/cluster
	@scripts/setup run
	@ALPACAMQ_CLUSTER_REPLICATION_FACTOR=3 $(BIN)/alpacamq serve --processes 3 --data-dir data/cluster

# Each worker gets a part of the suite in order, so that few start the brokers that tests of a module share.
PARALLEL := -n auto --dist worksteal

test: lint ## Check style and types, then run the tests
	@$(BIN)/pytest -q $(PARALLEL) -m "not heavy"

# The tests of these clients are skipped without them. Needs npm and Go.
clients: ## Install the JavaScript and Go clients that tests/compat uses if they are there
	@scripts/setup dev
	@$(BIN)/python -m tests.compat.schema_clients.programs

# Tests of the gRPC API by them are skipped without them. Needs Go.
grpctools: ## Install grpcurl and ghz for tests/compat
	@GOBIN=$(CURDIR)/.venv/gotools go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3
	@GOBIN=$(CURDIR)/.venv/gotools go install github.com/bojand/ghz/cmd/ghz@v0.93.0

# Each is skipped without its toolchain. They download clients.
quickstarts: ## Run the quick starts of Java, Go, JavaScript and Rust as their pages show them
	@scripts/setup dev
	@$(BIN)/pytest -q -m heavy tests/examples/test_quick_starts.py

# Without processes, browsers, Spark and disks that fill: what a change is checked with before it is committed.
UNIT := tests/model tests/protocol tests/consensus tests/replication tests/cluster tests/coordinator tests/queues tests/timers tests/telemetry \
	tests/log tests/test_architecture.py

check: lint ## Check style and types, then run the unit tests, within 90 seconds
	@$(BIN)/pytest -q $(PARALLEL) -m "not heavy" --hypothesis-profile=check -k "not fuzz and not _model" $(wildcard $(UNIT))

lint: ## Check style and types only
	@scripts/setup dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: ## Repair what can be repaired by itself
	@scripts/setup dev
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: ## Write what is generated in docs/
	@scripts/setup dev
	@$(BIN)/python scripts/generate_docs.py
	@$(BIN)/python -m benchmarks.page

site: ## Build the documentation site into ./site
	@scripts/setup dev
	@$(BIN)/python scripts/build_site.py
	@echo "open site/index.html"

# Needs a C compiler; about three minutes of CPU time.
compiled: ## Build a wheel in ./dist whose busiest modules are compiled
	@scripts/setup dev
	@scripts/compile dist

# TESTS=… for some of them.
compiled-test: ## Run the tests with the busiest modules compiled
	@scripts/setup dev
	@scripts/compile build
	@rm -rf build/compiled && $(BIN)/python -m zipfile -e build/alpacamq-*.whl build/compiled
	@PYTHONPATH=build/compiled $(BIN)/pytest -q $(PARALLEL) -m "not heavy" $(TESTS)

bench: ## Measure, and write benchmarks/results
	@scripts/setup dev
	@$(BIN)/python -m benchmarks

# Needs chromium; takes ten minutes.
screenshots: ## Take the pictures of the console in docs/images/console anew
	@scripts/setup dev
	@$(BIN)/pytest -q --screenshots tests/api/console/test_screenshots.py

crash: ## kill -9 the broker again and again and look for what is lost
	@scripts/setup dev
	@$(BIN)/pytest -q -m heavy -o timeout=7200 tests/integration/test_crash.py

# CUTS=2 takes about a minute; SEED=… replays what a run has found.
powercut: ## Cut the power under load, 30 times (root, a loop device)
	@scripts/setup dev
	@$(if $(CUTS),CUTS=$(CUTS)) $(if $(SEED),SEED=$(SEED)) $(BIN)/pytest -q -s -m heavy -o timeout=7200 tests/powercut

# SECONDS=… SEED=… FAULTS=kill,pause,… LOADS=groups,…; the history stays for a second look.
chaos: ## Inject faults into three nodes under load, for five minutes, and check what clients were promised
	@scripts/setup dev
	@$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAULTS),--faults $(FAULTS)) $(if $(LOADS),--loads $(LOADS))

# NAMES="failover partition" for some; ON=compose in containers; needs root for networks and disks.
scenarios: ## Run the scenarios of deploy/chaos against three nodes, and print a verdict for each
	@scripts/setup dev
	@$(BIN)/python -m tests.chaos.scenarios $(NAMES) $(if $(ON),--on $(ON)) $(if $(SEED),--seed $(SEED))

# SEED=… runs one seed and prints its events; SCENARIO=… only one of the simulations.
sim: ## Run the cluster's cores in virtual time with faults, SEEDS=1000 seeds
	@scripts/setup dev
	@$(BIN)/python -m tests.simulation $(SCENARIO) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))

# CORE=… only one of the cores.
mutants: ## Change every condition of the cluster's cores, and look for changes that no test finds
	@scripts/setup dev
	@$(BIN)/python -m tests.simulation.mutants $(CORE)

fuzz: ## Only the tests that feed the decoders and a running broker with garbage
	@scripts/setup dev
	@$(BIN)/pytest -q $(PARALLEL) -o timeout=7200 -k "fuzz or test_hostile"

hostile: ## Send hostile requests of every kind and print what others wait and the memory they take
	@scripts/setup dev
	@$(BIN)/python -m tests.hostile

heavy: ## Every test that takes minutes, the crashes included
	@scripts/setup dev
	@$(BIN)/pytest -q -m heavy -o timeout=7200

pythons: ## Run both README commands with every Python found here
	@scripts/pythons

hooks: ## Have git check style before every commit
	@scripts/setup dev
	@$(BIN)/pre-commit install

# BASE=… is another base image than Python's from Docker Hub; TARGET=spark is the image for pipelines.
image: ## Build the container image with docker, podman or buildah
	@deploy/docker/build $(or $(TARGET),broker)

# For machines that reach no registry of images: `make image` finds it. Needs root, mmdebstrap and buildah.
base: ## Make a base image from Debian's packages
	@deploy/docker/base localhost/alpacamq-base

image-test: ## Run the image as it is meant to be run, and check what it promises
	@deploy/docker/check

# PROFILE=tls for the same with TLS.
compose-test: ## Start three nodes with compose, kill one, and read everything
	@deploy/compose/check $(or $(PROFILE),cluster)

# Needs Go; the tests of deploy/load that use it are skipped without.
loadtools: ## Install k6 for deploy/load
	@GOBIN=$(CURDIR)/.venv/gotools go install go.k6.io/k6@v1.3.0

# Needs Go; without these, most tests of the chart are skipped.
helmtools: ## Install Helm, and the schemas of Kubernetes' objects
	@scripts/setup dev
	@mkdir -p .venv/helmtools
	@GOBIN=$(CURDIR)/.venv/helmtools go install helm.sh/helm/v3/cmd/helm@v3.19.0
	@$$(scripts/setup uv) pip install --quiet --target .venv/helmtools/lib kubernetes-validate==1.37.0

helm-test: helmtools ## Lint and render the Helm chart, and check every object
	@$(BIN)/pytest -q tests/deploy/test_chart.py tests/deploy/test_rules.py

# Needs Go, and 10 to 30 minutes the first time.
kubetools: ## Build the programs of Kubernetes that kube-test needs
	@deploy/kubernetes/tools

# Root; on Debian: etcd-server containerd runc containernetworking-plugins podman buildah nftables. And `make image`.
kube-test: kubetools ## Start a Kubernetes on this machine, and install, upgrade, scale and disturb the chart in it
	@scripts/setup dev
	@$(BIN)/pytest -q -s -m heavy -o timeout=7200 tests/kubernetes

proto: ## Generate the modules of the gRPC API from its .proto files
	@scripts/setup dev
	@scripts/generate_protos

COMPILE = $$(scripts/setup uv) pip compile --quiet --universal --generate-hashes --no-annotate \
	--python-version 3.11 --no-emit-index-url --custom-compile-command "make lock"

lock: ## Bring the lock files up to date with pyproject.toml
	@$(COMPILE) pyproject.toml -o requirements/run.lock
	@$(COMPILE) --extra spark --extra tables --extra delta --group dev pyproject.toml -o requirements/dev.lock
	@$(COMPILE) --extra spark --extra tables --extra delta -c requirements/dev.lock pyproject.toml -o requirements/spark.lock
	@echo uv | $(COMPILE) - -o requirements/uv.lock

clean: ## Remove the environment and the caches; ./data stays
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist site
	@find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
