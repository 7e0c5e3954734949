"""Keeps tensors of one step for the next one, in variables of their worker."""

from __future__ import annotations

from caramel.core.graph import TensorSpec
from caramel.core.names import ALL_KEPT, TensorRef, assigned, freed, read_back, token_taken
from caramel.modifiers.graph_writer import GraphWriter, static_shape


def keep(
    writer: GraphWriter, kept: str, worker: int, tensor: TensorRef, spec: TensorSpec, device: str
) -> TensorRef:
    """Keep a tensor in a variable called `kept`; returns what the next step reads."""
    handle = writer.add(
        kept,
        "VarHandleOp",
        device=device,
        outputs=[TensorSpec("resource", ())],
        dtype=spec.dtype,
        shape=static_shape(spec),
    )
    writer.last.attr["shared_name"].s = kept.encode()
    writer.add(
        # Assigning takes the tensor's buffer over and reading hands it out, so nothing is copied.
        assigned(kept),
        "AssignVariableOp",
        [handle, tensor],
        device=device,
        # Only when the moved ops of the step before have read what was kept.
        controls=[token_taken(worker, ALL_KEPT)],
        dtype=spec.dtype,
    )
    # For a plan that is not used any more; the next assignment makes the variable anew.
    writer.add(freed(kept), "DestroyResourceOp", [handle], device=device, ignore_lookup_error=True)
    return writer.add(
        read_back(kept), "ReadVariableOp", [handle], device=device, outputs=[spec], dtype=spec.dtype
    )
