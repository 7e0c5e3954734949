"""The rule for each kind of op: what it does to the courses of what it reads."""

from caramel.analyzers.examples import (
    arrays,
    axes,
    chosen_rows,
    elementwise,
    parts,
    products,
    reductions,
    shapes,
)
from caramel.analyzers.examples.at import Rule

# No kind is in two of these.
RULES: dict[str, Rule] = {
    **elementwise.RULES,
    **reductions.RULES,
    **products.RULES,
    **shapes.RULES,
    **parts.RULES,
    **axes.RULES,
    **chosen_rows.RULES,
    **arrays.RULES,
}
