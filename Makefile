# ringattn: `make help` lists the targets, `make info` what was found here.

# The MPI compiler wrapper to build with: mpicc if there is one. Empty: without MPI.
MPICC ?= $(shell command -v mpicc >/dev/null 2>&1 && echo mpicc)
MPICC := $(MPICC)
# The launcher that belongs to it: mpirun beside mpicc, mpirun.mpich beside mpicc.mpich.
MPIRUN ?= $(if $(findstring mpicc,$(MPICC)),$(subst mpicc,mpirun,$(firstword $(MPICC))),$(if $(MPICC),mpirun))
# The CUDA compiler: nvcc on PATH, or in CUDA_HOME. CUDA=no leaves CUDA out, CUDA=yes
# does not go without.
CUDA ?= auto
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME))))
NVCC := $(if $(filter no,$(CUDA)),,$(NVCC))
BIN     ?= bin/ringattn
VERSION ?= 0.1.0-dev
PREFIX  ?= /usr/local
DESTDIR ?=
GO      ?= go

EMPTY  :=
COMMA  := ,
TAGS   := $(subst $(EMPTY) $(EMPTY),$(COMMA),$(strip $(if $(MPICC),mpi) $(if $(NVCC),cuda)))
WITH   := scripts/mpi-env.sh '$(MPICC)' scripts/cuda-env.sh '$(NVCC)'
ARCHIVE := cu/build/libringattn_cuda.a
# The revision goes into the binary where git can tell it; a clone that belongs
# to somebody else, or a tarball, has none.
VCS    := $(if $(shell git rev-parse --verify HEAD 2>/dev/null),auto,false)
# That of a tarball of make dist, which has no git.
REVISION := $(shell cat REVISION 2>/dev/null)
# The archive's digest is in the flags, else Go would not link anew for a changed one.
BUILD  := $(GO) build -trimpath -buildvcs=$(VCS) -tags '$(TAGS)' -ldflags "-X ringattn/cmd.version=$(VERSION)\
	$(if $(REVISION),-X ringattn/cmd.commit=$(REVISION))\
	$(if $(NVCC),-X ringattn/kernels.archive=$$(sha256sum $(ARCHIVE) | cut -c 1-12))"
# setup may have brought MPI, so what there is is looked up again after it.
AGAIN  := $(MAKE) --no-print-directory
RUN    := MPIRUN='$(MPIRUN)' scripts
# Built from source, once; it brings gofumpt v0.12.0 with it.
LINT        := build/tools/golangci-lint
LINT_MODULE := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
C_FILES      = $(filter-out build/%,$(foreach e,c h cpp cu cuh,$(wildcard */*.$e */*/*.$e)))
SHELL_FILES  = .ci/run $(wildcard scripts/*.sh */*.sh hostfiles/*.sbatch)
FUZZ_SECONDS ?= 60

.DEFAULT_GOAL := all
.NOTPARALLEL:
.PHONY: all cuda-kernels cuda-test setup demo demo-run test test-run unit mpi-test device-test e2e slurm-test lint race fuzz fmt \
	man completions install dist packaging-test clean info help

all: cuda-kernels ## build the binary at BIN, with MPI and CUDA where they are
	@$(if $(MPICC),echo "building with MPI: $(MPICC)", \
	echo "building without MPI: no mpicc, or MPICC is empty; ranks of one process work (--ranks N); make info says how to get one")
	@mkdir -p $(dir $(BIN))
	@$(WITH) $(BUILD) -o $(BIN) .
	@echo "built $(BIN)"

# cu/'s archive, where there is a CUDA compiler.
ifneq ($(NVCC),)
cuda-kernels:
	@echo "building with CUDA: $(NVCC); the kernels take minutes, once"
	@$(MAKE) --no-print-directory -C cu NVCC='$(NVCC)' -j $$(nproc)
else ifeq ($(CUDA),yes)
cuda-kernels:
	@echo "CUDA=yes: no nvcc on PATH and none in CUDA_HOME/bin; give NVCC=path, on Debian NVCC=\$$(scripts/cuda.sh)"; exit 3
else
cuda-kernels:
	@echo "building without CUDA: $(if $(filter no,$(CUDA)),CUDA=no,no nvcc; make info says how to get one)"
endif

cuda-test: cuda-kernels ## the tests of the CUDA kernels through Go, on a GPU; without one they say that they skip
	@$(if $(NVCC),,echo "cuda-test: no nvcc was found"; exit 3)
	@mkdir -p build
	$(WITH) $(GO) vet -trimpath -tags '$(TAGS)' ./...
	$(WITH) $(GO) test -c -trimpath -tags '$(TAGS)' -ldflags "-X ringattn/kernels.archive=$$(sha256sum $(ARCHIVE) | cut -c 1-12)" \
		-o build/kernels.cuda.test ./kernels
	build/kernels.cuda.test -test.v -test.run CUDA

setup: ## find what is needed; as root, install what is missing with apt-get
	@scripts/setup.sh

demo: setup ## four ranks compute attention of a real tensor and check it
	@$(AGAIN) demo-run

demo-run: all
	@$(RUN)/demo.sh $(abspath $(BIN))

test: setup ## all tests that need no more than this machine
	@$(AGAIN) test-run

test-run: unit $(if $(MPICC),mpi-test) e2e

unit: ## vet, and the Go tests, without MPI
	$(GO) vet ./...
	$(GO) test ./...

mpi-test: ## the tests of package mpi, and the overlap measurement, under the launcher
	@$(if $(MPICC),,echo "mpi-test: no MPI was found; make setup says how to get it"; exit 3)
	$(WITH) $(GO) vet -trimpath -tags mpi ./...
	@mkdir -p build
	$(WITH) $(GO) test -c -tags mpi -o build/mpi.test ./mpi
	$(WITH) $(GO) test -c -tags mpi -o build/overlap.test ./ring
	$(RUN)/mpitest.sh build/mpi.test build/overlap.test

device-test: ## device memory through MPI without a GPU; RINGATTN_CUDA_MPI=place of a CUDA-aware Open MPI
	@$(if $(MPICC),,echo "device-test: no MPI was found; make setup says how to get it"; exit 3)
	$(WITH) $(GO) vet -trimpath -tags 'mpi standin' ./...
	MPICC='$(MPICC)' $(RUN)/device.sh

e2e: all ## the binary on files with known results, 1 to 8 ranks
	$(RUN)/e2e.sh $(abspath $(BIN))
	$(if $(MPIRUN),MPIRUN='$(MPIRUN)' RINGATTN_BIN=$(abspath $(BIN)) RINGATTN_MPIRUN=$(abspath scripts/mpirun.sh) \
		$(GO) test -count=1 ./e2e)

slurm-test: ## the binary under a real SLURM of two virtual nodes here; needs root and both MPIs
	@$(AGAIN) MPICC=mpicc.openmpi BIN=build/ringattn.openmpi all
	@$(AGAIN) MPICC=mpicc.mpich BIN=build/ringattn.mpich all
	scripts/slurm.sh build/ringattn.openmpi build/ringattn.mpich

race: ## the Go tests under the race detector
	$(GO) test -race -timeout 30m ./...

fuzz: ## each fuzz target in turn, FUZZ_SECONDS together
	scripts/fuzz.sh $(FUZZ_SECONDS)

lint: $(LINT) ## golangci-lint with gofumpt, clang-format, shellcheck
	$(LINT) run
	$(if $(TAGS),$(WITH) $(LINT) run --build-tags '$(TAGS)')
	clang-format --dry-run --Werror $(C_FILES)
	shellcheck -x $(SHELL_FILES)

fmt: $(LINT) ## format the Go and C files
	$(LINT) fmt
	clang-format -i $(C_FILES)

$(LINT): Makefile
	GOBIN=$(abspath $(dir $(LINT))) GOFLAGS= $(GO) install $(LINT_MODULE)
	@touch $@

man: all ## the man pages, in build/man
	@rm -rf build/man
	$(BIN) man build/man

completions: all ## completions for bash, zsh and fish, in build/completions
	@mkdir -p build/completions
	$(BIN) completion bash >build/completions/ringattn.bash
	$(BIN) completion zsh >build/completions/_ringattn
	$(BIN) completion fish >build/completions/ringattn.fish

install: man completions ## install below DESTDIR and PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d \
		$(DESTDIR)$(PREFIX)/share/modulefiles/ringattn $(DESTDIR)$(PREFIX)/share/ringattn
	install -m 755 $(BIN) $(DESTDIR)$(PREFIX)/bin/ringattn
	install -m 644 build/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 build/completions/ringattn.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ringattn
	install -m 644 build/completions/_ringattn $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	install -m 644 build/completions/ringattn.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' packaging/modulefiles/ringattn >build/modulefile
	install -m 644 build/modulefile $(DESTDIR)$(PREFIX)/share/modulefiles/ringattn/$(VERSION)
	install -m 644 $(wildcard hostfiles/*) docs/bench.schema.json $(DESTDIR)$(PREFIX)/share/ringattn

dist: ## a tarball of HEAD with all Go modules in it, to build without a network
	@rm -rf build/dist && mkdir -p build/dist
	git archive --prefix=ringattn-$(VERSION)/ HEAD | tar -x -C build/dist
	git rev-parse --short=12 HEAD >build/dist/ringattn-$(VERSION)/REVISION
	cd build/dist/ringattn-$(VERSION) && $(GO) mod vendor
	tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$$(git log -1 --format=%ct) -C build/dist \
		-c ringattn-$(VERSION) | gzip -n >build/ringattn-$(VERSION).tar.gz
	@rm -rf build/dist
	@echo "made build/ringattn-$(VERSION).tar.gz"

packaging-test: ## make install, make dist without a network, the modulefile, the recipes of packaging/
	@$(AGAIN) all
	scripts/packaging.sh '$(MPICC)'

clean: ## remove what was built
	rm -rf bin build cu/build

info: ## what was found here, and how to get what is missing
	@MPICC='$(MPICC)' NVCC='$(NVCC)' $(RUN)/info.sh

help: ## this list
	@echo "make TARGET [MPICC=mpicc.mpich] [CUDA=yes|no] [NVCC=path] [BIN=path] [PREFIX=dir] [DESTDIR=dir] [VERSION=x]"
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## /\1: /p' Makefile | \
		while IFS=: read -r target text; do printf '  %-14s %s\n' "$$target" "$$text"; done
