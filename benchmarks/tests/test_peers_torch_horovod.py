"""PyTorch DDP and Horovod: the networks, emulated computation and the settings, over the wire."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest

from benchmarks import networks, peers
from benchmarks.peers import torch_ddp
from benchmarks.peers.data import Case, kernels_of, prepared
from benchmarks.peers.running import REPOSITORY
from benchmarks.peers.validate import validate
from benchmarks.tests.beds import needs_namespaces

CASE = Case("tiny", batch=4, steps=5, warm_up=1, timeout_s=200)
# 14.4 microseconds on a K80 become some 50 ms.
EMULATED = replace(CASE, accelerator="K80", slowdown=3500.0)


def skip_unless_there(name):
    if reason := peers.get(name).available():
        assert reason == "not installed"
        pytest.skip(f"{name}: {reason}")
    return peers.get(name)


def run(bed, name, case, setting=0):
    peer = skip_unless_there(name)
    return peers.run(peer, bed, case, peer.settings()[setting])


def kernels_s(case):
    kernels = kernels_of(prepared(case, 2).directory)
    return sum(kernel.forward_s + kernel.backward_s for kernel in kernels)


# PyTorch -----------------------------------------------------------------------------------------


def in_torch(code):
    """What a program prints as JSON in PyTorch's environment."""
    skip_unless_there("torch_ddp")
    output = subprocess.run(
        [torch_ddp.PYTHON, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return json.loads(output.stdout)


@pytest.fixture(scope="module")
def torch_sizes():
    """Entries of each parameter, by network; nothing is allocated."""
    return in_torch(
        """
import json, sys, torch
from benchmarks.peers import torch_networks
with torch.device("meta"):
    sizes = {}
    for name in torch_networks.NETWORKS:
        shape = [512] if name.endswith("_32") else [8 if name == "tiny" else 224] * 2 + [3]
        network = torch_networks.build(name, shape)
        sizes[name] = [parameter.numel() for parameter in network.parameters()]
json.dump(sizes, sys.stdout)
"""
    )


@pytest.mark.processes
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_networks_have_the_parameters_of_those_in_tensorflow(torch_sizes, name):
    gradients = networks.build(name, batch=1).gradients
    sizes = [variable.shape.num_elements() for _, variable in gradients]
    assert torch_sizes[name] == sizes
    assert len(sizes) == networks.NETWORKS[name].variables


@pytest.mark.processes
def test_networks_take_small_images_and_a_second_classifier_counts_less():
    found = in_torch(
        """
import json, math, sys, torch
from benchmarks.peers import torch_networks as networks
losses = {}
for name, size in (("alexnet_v2", 67), ("inception_v3", 75), ("resnet_v2_50", 32)):
    network = networks.build(name, (size, size, 3))
    loss = networks.loss(network(torch.randn(2, 3, size, size)), torch.tensor([1, 2]))
    loss.backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())
    losses[name] = float(loss) / math.log(1000)
even = torch.zeros(2, 1000)
losses["one"], losses["two"] = (
    float(networks.loss(outputs, torch.tensor([1, 2]))) / math.log(1000)
    for outputs in (even, (even, even))
)
json.dump(losses, sys.stdout)
"""
    )
    assert found.pop("one") == pytest.approx(1.0)
    assert found.pop("two") == pytest.approx(1.4)
    assert all(0.5 < loss < 3 for loss in found.values())


@pytest.mark.processes
def test_an_emulated_chain_takes_the_time_of_its_kernels_and_shares_constants():
    found = in_torch(
        """
import json, sys, time, torch
from benchmarks.peers.data import Kernel
from benchmarks.peers.torch_emulated import Emulated
model = Emulated([Kernel(((3, 2), (2,)), 0.001, 0.002)] * 20 + [Kernel((), 0.0, 0.0)])
seconds = []
for _ in range(5):
    model.zero_grad()
    begin = time.perf_counter()
    loss = model()
    forward = time.perf_counter() - begin
    loss.backward()
    seconds.append((forward, time.perf_counter() - begin))
constants = [each for _, gradients in model._layers for each in gradients]
shared = [p.grad.data_ptr() == c.data_ptr() for p, c in zip(model.parameters(), constants)]
json.dump({"seconds": seconds, "shared": shared}, sys.stdout)
"""
    )
    assert found["shared"] == [True] * 40
    for forward_s, whole_s in found["seconds"]:
        assert forward_s >= 0.0199
        assert whole_s >= 0.0599


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.parametrize("setting", [0, 4])
@pytest.mark.parametrize("case", [EMULATED, replace(EMULATED, updates="none")])
def test_ddp_aggregates_emulated_gradients_over_the_wire(bed, case, setting):
    result = run(bed, "torch_ddp", case, setting)
    assert [each.problems for each in validate([result])] == [()]
    assert result.own_computation_s >= kernels_s(case) - 1e-3
    assert min(result.step_s) >= kernels_s(case) - 1e-3


# Horovod -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(bed):
    skip_unless_there("horovod")
    peer = peers.get("plain")
    return {case: peers.run(peer, bed, case, peer.settings()[0]) for case in (CASE, EMULATED)}


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.parametrize("setting", [1, 3, 4])
def test_horovod_trains_as_plain_caramel_does_by_gloo_and_mpi(bed, plain, setting):
    result = run(bed, "horovod", CASE, setting)
    assert [each.problems for each in validate([plain[CASE], result])] == [(), ()]
    assert result.own_computation_s > 0
    assert result.versions.keys() == {"horovod", "tensorflow", "mpich"}


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.parametrize("setting", [0, 4])
def test_horovod_aggregates_emulated_gradients_over_the_wire(bed, plain, setting):
    result = run(bed, "horovod", EMULATED, setting)
    assert [each.problems for each in validate([plain[EMULATED], result])] == [(), ()]
    assert result.own_computation_s >= kernels_s(EMULATED) - 1e-3
    assert min(result.step_s) >= kernels_s(EMULATED) - 1e-3


def test_settings_of_horovod_begin_with_its_defaults():
    settings = peers.get("horovod").settings()
    assert settings[0] == {"backend": "gloo"}
    assert settings[-1] == {"backend": "mpi"}


def test_bytes_of_horovod_are_those_of_its_backend():
    horovod, (gloo, *_, mpi) = peers.get("horovod"), peers.get("horovod").settings()
    assert horovod.expected_bytes([600, 300], 3, gloo) == [1200.0] * 3
    assert horovod.expected_bytes([600, 300], 3, mpi) == [900.0, 1800.0, 900.0]
