# What people type. The build itself is CMake's (CMakePresets.json).
BUILD := build

export BUILD PREFIX DESTDIR

.PHONY: help build install demo test test-all bench docs format lint clean
help:
	@echo "make demo    install what is needed, build, train Fashion-MNIST on two processes"
	@echo "make test    the same set-up, then the tests (minutes); make test-all adds lint, sanitizers and long lists"
	@echo "make bench   measure beside the peers that are installed"
	@echo "make docs    the API reference into $(BUILD)/docs"
	@echo "make format  clang-format over the tree"
	@echo "make lint    check format, wording and structure; clang, clang-tidy, cppcheck"
	@echo "make build   build what users install, and the examples; make install PREFIX=/usr/local installs it"

# A folder that plain cmake has configured, without Ninja perhaps, is used as it is.
$(BUILD)/cmake_install.cmake:
	@scripts/install-deps
	@cmake --preset release >/dev/null

build: $(BUILD)/cmake_install.cmake
	@cmake --build $(BUILD) --parallel $(shell nproc) --target all

install: build
	@scripts/install

demo: $(BUILD)/cmake_install.cmake
	@cmake --build $(BUILD) --parallel $(shell nproc) --target demo_programs
	@$(BUILD)/bin/lockstep run -n 2 $(BUILD)/examples/fashion_mnist $(ARGS)

test:
	@scripts/test

test-all: test
	@$(MAKE) --no-print-directory lint
	@scripts/test --more

bench:
	@scripts/install-deps --peers
	@cmake --preset bench >/dev/null
	@cmake --build build-bench --target all
	@bench/run $(ARGS)

docs:
	@scripts/install-deps --docs
	@scripts/docs

format:
	@scripts/install-deps --lint
	@git ls-files '*.c' '*.h' '*.inc' '*.cu' '*.cuh' | xargs clang-format -i

lint:
	@scripts/install-deps --lint
	@scripts/lint

clean:
	@rm -rf $(BUILD) build-*
