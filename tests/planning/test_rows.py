"""Into how many rows is a parameter split that is larger than a server's share?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caramel.core.graph import TensorSpec
from caramel.planning.serving.rows import is_divisible, larger_than_a_share, rows_of_parts


def split(servers: int, **shapes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    parameters = {name: TensorSpec("float32", shape) for name, shape in shapes.items()}
    large = larger_than_a_share(parameters, servers)
    return rows_of_parts(parameters, servers, [n for n in large if is_divisible(parameters[n])])


def test_what_is_no_larger_than_a_share_stays_whole():
    assert split(2, a=(50, 16), b=(50, 16)) == {}
    assert split(1, a=(50, 16)) == {}


def test_parts_fill_up_what_whole_ones_leave_free():
    # A share is 100 rows: b leaves 60 of a server's.
    assert split(2, a=(160, 16), b=(40, 16)) == {"a": (100, 60)}
    assert split(3, a=(300, 16)) == {"a": (100, 100, 100)}
    assert split(3, a=(7, 16)) == {"a": (2, 2, 3)}


def test_two_may_be_larger_than_a_share():
    found = split(4, a=(200, 16), b=(150, 16), c=(50, 16))
    assert found == {"a": (100, 100), "b": (100, 50)}


def test_parts_begin_at_whole_vectors():
    """Of 64 bytes, so that kernels compute the same last elements one by one."""
    assert split(2, a=(101,)) == {"a": (48, 53)}
    assert split(2, a=(30, 5)) == {"a": (16, 14)}
    assert not is_divisible(TensorSpec("float32", (16, 5)))
    assert not is_divisible(TensorSpec("float32", ()))


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([1, 3, 8, 16])), min_size=1),
    st.integers(1, 5),
)
def test_the_parts_are_the_whole(shapes, servers):
    parameters = {f"v{number}": shape for number, shape in enumerate(shapes)}
    for name, rows in split(servers, **parameters).items():
        assert sum(rows) == parameters[name][0]
        assert min(rows) > 0
        assert 1 < len(rows) <= servers
