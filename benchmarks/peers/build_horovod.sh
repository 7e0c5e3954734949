#!/bin/sh
# Builds Horovod with Gloo for TensorFlow into the virtual environment $1: build_horovod.sh .venv
#
# One source file asks TensorFlow's wheel for a header of XLA that it lacks; only GPUs need it.
set -eu

VERSION=0.28.1
VENV=$(cd "$1" && pwd)
BUILD=$(mktemp -d)
trap 'rm -rf "$BUILD"' EXIT

pip() {
    "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"
}

pip install 'setuptools<70' wheel cloudpickle psutil pyyaml packaging cffi 'tensorflow==2.21.*'
pip download --no-deps --no-binary :all: --no-build-isolation --dest "$BUILD" "horovod==$VERSION"
tar -xzf "$BUILD/horovod-$VERSION.tar.gz" -C "$BUILD"
cd "$BUILD/horovod-$VERSION"
sed -i 's/^#if TENSORFLOW_VERSION >= 2006000000$/& \&\& (HAVE_CUDA || HAVE_ROCM)/' \
    horovod/tensorflow/xla_mpi_ops.cc
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
       HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 MAKEFLAGS=-j2
PATH="$VENV/bin:$PATH" "$VENV/bin/python" setup.py --quiet bdist_wheel
pip install --no-deps --no-cache-dir dist/*.whl
