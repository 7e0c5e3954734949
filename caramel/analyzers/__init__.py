"""Algorithms from facts to a fact; each file answers one question.

===================== ===========================================================================
`inputs`              which ops put out values that differ between workers by themselves?
`dependence`          what do such values reach?
`frames`              in which loop frame is each op?
`branches`            in which branches of conditionals is each op?
`state_order`         in which order are variables read and written where edges leave that open?
`regions`             which ops compute the loss, differentiate, and come behind that?
`seeds`               from which constants does differentiation start?
`examples`            how does each tensor go with the examples of a batch?
`courses`             the answers to that, as values to reckon with
`course_rules`        what each kind of op does to them
`shape_rules`         the same of ops that move, cut, join and make axes
`row_rules`           the same of ops that work on each example by itself
`search`              which tensors separate differentiation from the updates most cheaply?
`wider`               the same where more is known of tensors than how they lie
`proven`              the same among tensors that are proven to be sums over the examples
`seeded`              the same among tensors that are linear in the seed of differentiation
`loss`                how does what a worker computes count in the whole batch?
`frontier`            where does differentiation end and post-processing begin?
`factors`             from which smaller tensors can a gradient be computed again?
`beside`              what do fetches write beside a step, and may each worker do that?
`merging`             how is one value made of what each worker has gathered?
`replicas`            which variables stay equal, and can replicas drift apart?
`pipelines`           where are input pipelines split into shards?
`fusions`             which ops may TensorFlow compute as one?
`units`               what can a worker compute piece by piece, and which does a gradient need?
`activation`          in which order should raw gradients get ready?
`windows`             when can each parameter be aggregated without blocking computation?
`racing`              which fetches touch a variable in no order with their step?
`whole_feeds`         which fed tensors do not go with the examples?
===================== ===========================================================================

`caramel.access` (which variables does each op read and write?) belongs to them, and is on a lower
layer because the capture of a graph asks the same.
"""

from caramel.access import state_access
from caramel.analyzers.activation import activation_order
from caramel.analyzers.examples import examples
from caramel.analyzers.factors import gradient_factors
from caramel.analyzers.frames import loop_frames
from caramel.analyzers.frontier import gradient_frontier
from caramel.analyzers.fusions import fused_ops
from caramel.analyzers.inputs import worker_inputs
from caramel.analyzers.loss import loss_scales
from caramel.analyzers.merging import merging
from caramel.analyzers.pipelines import input_pipelines
from caramel.analyzers.replicas import replica_state
from caramel.analyzers.state_order import state_order
from caramel.analyzers.windows import transfer_windows

ANALYZERS = (
    state_access,
    loop_frames,
    fused_ops,
    worker_inputs,
    examples,
    state_order,
    loss_scales,
    gradient_frontier,
    gradient_factors,
    merging,
    replica_state,
    input_pipelines,
    activation_order,
    transfer_windows,
)
