#!/bin/sh
# Builds Horovod with Gloo and MPI for TensorFlow into a virtual environment, unless it is there;
# with what Caramel needs besides TensorFlow, for its benchmarks:
#
#     build_horovod.sh .venv
#
# MPI is MPICH's package; its compiler wrapper and its launcher are in the environment's bin. One
# source file asks TensorFlow's wheel for a header of XLA that it lacks; only GPUs need it.
set -eu

VERSION=0.28.1
VENV=$(cd "$1" && pwd)
PATH="$VENV/bin:$PATH"
BUILD=$(mktemp -d)
trap 'rm -rf "$BUILD"' EXIT

pip() {
    python -m pip --disable-pip-version-check --quiet "$@"
}

pip install 'setuptools<70' wheel cloudpickle psutil pyyaml packaging cffi 'mpich==5.*' \
    'tensorflow==2.21.*' 'networkx>=3.2'
if python -c 'import horovod.tensorflow as h; assert h.gloo_built() and h.mpi_built()' 2>/dev/null
then
    echo "$1 has Horovod with Gloo and MPI already"
    exit
fi
pip download --no-deps --no-binary :all: --no-build-isolation --dest "$BUILD" "horovod==$VERSION"
tar -xzf "$BUILD/horovod-$VERSION.tar.gz" -C "$BUILD"
cd "$BUILD/horovod-$VERSION"
sed -i 's/^#if TENSORFLOW_VERSION >= 2006000000$/& \&\& (HAVE_CUDA || HAVE_ROCM)/' \
    horovod/tensorflow/xla_mpi_ops.cc
export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
       HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 MAKEFLAGS=-j2
nice python setup.py --quiet bdist_wheel
pip install --no-deps --no-cache-dir --force-reinstall dist/*.whl
