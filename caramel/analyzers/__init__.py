"""Facts from facts: each file answers one question about the job's graph.

In come the op graph and the job (`core.facts`); out comes one frozen fact for each
question. `analysis` runs what is needed, in the order of their annotations.

=============== ====================================================================================
`activation`    in which order should raw gradients get ready? The Caramel paper, section 4.1, stage
                1
`analysis`      runs analyzers: works out from annotations which are needed and in what order
`beside`        what do fetches write beside a step, and may each worker do that by itself?
`branches`      in which branches of v1 conditionals is each op?
`deferral`      what moves into the next step when the aggregation of some gradients does?
`dependence`    what do values that differ between workers reach?
`examples/`     how does each tensor go with the examples of a batch? Rules for each kind of op, in
                one place for each sort
`factors`       from which smaller tensors can a gradient be computed again?
`frames`        in which v1 loop frame is each op?
`fusions`       which ops may TensorFlow compute as one?
`gradients/`    where are the raw gradients: the tensors that are aggregated between the workers?
`inputs`        which ops put out values that differ between workers by themselves?
`loss`          how does what a worker computes count in the loss, and in the gradients, of the
                whole batch?
`merging`       which variables gather what the examples say, and how is one value made of all
                workers' own?
`moves`         which ops move into the next step with which gradients?
`ordered_state` what is known of a job whose step reads and writes its variables in one order
`over_steps`    facts of a job with several steps, which hold whichever step is done when
`pipelines`     where are the input pipelines of the step split into shards?
`preparing`     which ops prepare steps: what initialises, fills, starts and reads?
`racing`        which fetches touch a variable that their step touches, too, in no order with it?
`replicas`      which variables stay equal on all workers, and does everything that must stay equal
                do so?
`rows`          which parameters may be split by rows, because their updates are elementwise?
`seed_states`   which variables are seeds of stateless random ops?
`sendings`      what does a step send between the devices over which its replica is spread?
`serving`       with parameter servers: what of a step is done once, where, and what does each
                worker do?
`state_order`   in which order does a step read and write its variables where its edges leave that
                open?
`units`         what can a worker compute piece by piece, and which pieces does each gradient need?
`whole_feeds`   which fed tensors go to every worker whole, because they do not go with the
                examples?
`windows`       when can each parameter be aggregated without blocking computation? The Caramel
                paper, 3.3.1
`workload`      what does a worker compute in a step, piece by piece, and what does each piece wait
                for?
=============== ====================================================================================
"""

from caramel.analyzers.activation import activation_order
from caramel.analyzers.examples.examples import examples
from caramel.analyzers.factors import gradient_factors
from caramel.analyzers.frames import loop_frames
from caramel.analyzers.fusions import fused_ops
from caramel.analyzers.gradients.frontier import gradient_frontier
from caramel.analyzers.inputs import worker_inputs
from caramel.analyzers.loss import loss_scales
from caramel.analyzers.merging import merging
from caramel.analyzers.pipelines import input_pipelines
from caramel.analyzers.replicas import replica_state
from caramel.analyzers.state_order import state_order
from caramel.analyzers.windows import transfer_windows
from caramel.core.calibration import usual_calibration
from caramel.core.variable_access import state_access

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
    usual_calibration,
)
