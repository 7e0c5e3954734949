# make train   trains a network on real data, on several workers of this machine
# make demo    shows in a minute what a plan brings, on two hosts of this machine (needs root)
# make train-ps         trains it with parameter servers
# make train-keras      trains a Keras model
# make train-placed     trains a network that needs more memory than a worker has
# make test    runs all tests of the library
# make test-fast        those of them that need no TensorFlow, in about a minute
# make test-benchmarks  the tests of the benchmarks
# make lint    checks style, format and types
# make docs    makes the documentation, in docs/_build/html
#
# make bench-torch     installs PyTorch, to be measured beside Caramel, into .venv-torch
# make bench-horovod   builds Horovod with Gloo and MPI (minutes; needs g++ and cmake) into
#                      .venv-horovod, unless it is there
#
# Each of the first ten makes the virtual environment .venv and installs everything into it, if
# that is not done yet.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
READY := $(VENV)/.ready
READY_FOR_DOCS := $(VENV)/.ready-for-docs
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
PYTEST := $(VENV)/bin/python -m pytest -n 3 --dist worksteal
PRINTED := $(VENV)/printed-by-tests-with-onednn
# In this mode editors and type checkers find the package, too.
EDITABLE := --config-settings editable_mode=compat --editable

.PHONY: train demo train-ps train-keras train-placed test test-fast test-benchmarks lint docs \
	bench-torch bench-horovod

train: $(READY)
	@echo "Training on $(WORKERS) worker processes of this machine (TensorFlow takes some seconds to start):"
	@$(VENV)/bin/python examples/train_resnet.py --compare --workers local:$(WORKERS)

demo: $(READY)
	@$(VENV)/bin/python -m benchmarks.demo

train-ps: $(READY)
	@echo "Training on $(WORKERS) worker processes and a parameter server of this machine (TensorFlow takes some seconds to start):"
	@$(VENV)/bin/python examples/train_parameter_server.py --workers local:$(WORKERS)

train-keras: $(READY)
	@echo "Training a Keras model on $(WORKERS) worker processes of this machine (TensorFlow takes some seconds to start):"
	@$(VENV)/bin/python examples/train_keras.py --workers local:$(WORKERS)

train-placed: $(READY)
	@echo "Spreading a network over $(WORKERS) worker processes of this machine (TensorFlow takes some seconds to start):"
	@$(VENV)/bin/python examples/train_placed.py --workers local:$(WORKERS)

# With oneDNN, TensorFlow looks through all its kernels for every graph, a quarter of the time of a
# small test. Float64, in which most tests compute, has no kernels of oneDNN; only tests whose results
# may depend on them run with them. These are few, and wait more than they compute: they run beside
# the others, and what they print comes at the end.
test: $(READY)
	@TF_ENABLE_ONEDNN_OPTS=1 $(PYTEST) -n 1 -m onednn \
		$$(grep -rl --include='test_*.py' mark.onednn tests) >$(PRINTED) 2>&1 & with=$$!; \
	TF_ENABLE_ONEDNN_OPTS=0 $(PYTEST) -m "not onednn"; failed=$$?; \
	wait $$with || failed=$$?; cat $(PRINTED); exit $$failed

test-fast: $(READY)
	@PYTHONPATH=tests/support/without_tensorflow $(PYTEST) -m "not processes and not slow"

test-benchmarks: $(READY)
	@$(PYTEST) benchmarks/tests

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: $(READY_FOR_DOCS)
	@echo "Making the documentation (about a minute)"
	@TF_CPP_MIN_LOG_LEVEL=3 $(VENV)/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

$(READY): setup.cfg pyproject.toml
	@echo "Installing Caramel, TensorFlow and the tools into $(VENV) (once; this takes minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet $(EDITABLE) ".[dev]"
	@touch $@

$(READY_FOR_DOCS): $(READY)
	@echo "Installing what makes the documentation (once)"
	@$(PIP) install --quiet $(EDITABLE) ".[dev,docs]"
	@touch $@

# This version exactly: others bring gigabytes of CUDA.
bench-torch:
	@$(PYTHON) -m venv .venv-torch
	@.venv-torch/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0 numpy

bench-horovod:
	@$(PYTHON) -m venv .venv-horovod
	@sh benchmarks/peers/build_horovod.sh .venv-horovod
