# make train   trains a network on real data, on several workers of this machine
# make test    runs all tests
# make lint    checks style, format and types
#
# make bench-torch     installs PyTorch, to be measured beside Caramel, into .venv-torch
# make bench-horovod   builds Horovod with Gloo and MPI (minutes; needs g++ and cmake) into
#                      .venv-horovod, unless it is there
#
# Each of the first three makes the virtual environment .venv and installs everything into it, if
# that is not done yet.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
READY := $(VENV)/.ready

.PHONY: train test lint bench-torch bench-horovod

train: $(READY)
	@echo "Training on $(WORKERS) worker processes of this machine:"
	@$(VENV)/bin/python examples/train_resnet.py --local --workers $(WORKERS)

test: $(READY)
	@$(VENV)/bin/python -m pytest -n 3 --dist worksteal

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

$(READY): setup.cfg pyproject.toml
	@echo "Installing Caramel, TensorFlow and the tools into $(VENV) (once; this takes minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --quiet --editable ".[dev]"
	@touch $@

# This version exactly: others bring gigabytes of CUDA.
bench-torch:
	@$(PYTHON) -m venv .venv-torch
	@.venv-torch/bin/python -m pip --disable-pip-version-check install --quiet torch==2.13.0 numpy

bench-horovod:
	@$(PYTHON) -m venv .venv-horovod
	@sh benchmarks/peers/build_horovod.sh .venv-horovod
