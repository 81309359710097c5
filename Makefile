# Mortise. `make help` lists the targets.
GO      ?= go
TAGS    := grpcnotrace
# What `mortise kubectl version` says of itself; the libraries have only a placeholder.
VERSION := v1.37.1
LDFLAGS := -s -w -funcalign=8 -X k8s.io/component-base/version.gitVersion=$(VERSION) -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 -X k8s.io/client-go/pkg/version.gitVersion=$(VERSION)
BIN     := bin/mortise
# Flags of its own make the program smaller and its build faster: see scripts/overlay/flags.
SMALL   := -small
# One static binary, as the tests are.
export CGO_ENABLED ?= 0

.PHONY: help up build release test race lint gen page check bench soak fuzz mutate conformance FORCE
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/mortise; SMALL=: with the flags of the tests, which then compile nothing twice, as one that is a fifth larger
	@GO='$(GO)' ./scripts/compile $(SMALL) -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/mortise
	@cp $(BIN) $(BIN).copy && mv $(BIN).copy $(BIN) # what the linker itself wrote, the page cache has in larger pieces: 20 MB more are resident

up: build ## build, install what is missing, start a cluster, print what to type next
	@./scripts/up

release: ## all files of a release in DIST=dist: binaries for PLATFORMS=OS/ARCH,..., Debian packages, images, bills of materials, checksums
	$(GO) run -tags $(TAGS) ./scripts/release -ldflags '$(LDFLAGS)' -out '$(or $(DIST),dist)' $(if $(PLATFORMS),-platforms '$(PLATFORMS)') $(if $(MAINTAINER),-maintainer '$(MAINTAINER)')

test: ## the whole test suite
	./scripts/test

race: ## the suite under the race detector, and client-go's of changed objects
	@# Years pass by the simulated clocks of the controllers' tests, and the detector looks at all objects each second of them.
	CGO_ENABLED=1 KUBE_CACHE_MUTATION_DETECTOR=true $(GO) test -tags $(TAGS) -race -short -timeout 30m $$($(GO) list -tags $(TAGS) ./... | grep -v /internal/controllers)
	CGO_ENABLED=1 $(GO) test -tags $(TAGS) -race -short -timeout 30m ./internal/controllers/...

lint: ## gofmt, go vet, staticcheck, the house rules
	./scripts/lint

gen: ## make the generated files (z_*) anew, all but the console's page
	$(GO) generate -tags $(TAGS) $$($(GO) list -tags $(TAGS) ./... | grep -v '/internal/console$$')

page: ## make the console's page anew (internal/console/z_dist); wants Node.js and npm
	$(GO) generate -tags $(TAGS) ./internal/console

check: lint ## lint, and that generated files and go.mod are as a fresh generation makes them
	$(MAKE) gen
	$(GO) mod tidy
	git diff --exit-code -- '**/z_*' go.mod go.sum

bench: build ## measure every budget of the design on this machine
	$(GO) run -tags $(TAGS) ./bench -binary $(BIN)

soak: build ## hours: all verbs mixed with kill -9, then a check of the history; 10,000 simulations of the controllers, 1,000 hours of volumes amid kills; 500 histories of servers on etcd, and of one on disk, amid faults; an upgrade from the release before
	$(GO) test -tags $(TAGS) -timeout 4h -run Soak -v ./test -soak 1h
	$(GO) test -tags $(TAGS) -timeout 4h -v ./internal/controllers/simulation -simulations 10000
	MORTISE_TEST_PREVIOUS=$$(./scripts/release/previous) $(GO) test -tags $(TAGS) -timeout 10m -run '^TestUpgrade$$' -v ./test
	$(GO) test -tags $(TAGS) -timeout 4h -run Kills -v ./internal/controllers/attachdetach -kills 1000
	cd test/robustness && MORTISE_ROBUSTNESS_SEEDS=$${MORTISE_ROBUSTNESS_SEEDS:-500} $(GO) test -tags $(TAGS) -timeout 4h -v .

fuzz: ## every fuzz target for FUZZTIME (10s) each
	./scripts/fuzz $(or $(FUZZTIME),10s)

mutate: ## change PKG by one fault at a time, print the faults that its tests (and FAR's that match FARRUN) miss; V=1: all; at least MIN=90 percent are caught
	$(GO) run ./scripts/mutate -tags '$(TAGS)' -min $(or $(MIN),90) $(if $(V),-v) -far '$(FAR)' -farrun '$(or $(FARRUN),.)' $(PKG)

conformance: build ## Kubernetes' conformance tests of PEERS=DIR, which scripts/conformance/build DIR has made; RUNS=simulated,containers,serial, FOCUS, SKIP, TIMEOUT=3h, AFTER=earlier report.json files
	$(GO) run -tags $(TAGS) ./scripts/conformance -peers '$(PEERS)' $(if $(RUNS),-runs '$(RUNS)') $(if $(FOCUS),-focus '$(FOCUS)') $(if $(SKIP),-skip '$(SKIP)') \
		$(if $(TIMEOUT),-timeout '$(TIMEOUT)') $(if $(AFTER),-after '$(AFTER)')
