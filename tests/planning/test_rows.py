"""Into how many rows is a parameter split that is larger than a server's share?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.planning.serving.rows import is_divisible, larger_than_a_share, rows_of_parts


def parameter(name: str, *shape: int) -> Variable:
    spec = TensorSpec("float32", shape)
    return Variable(name, name, f"{name}/init", f"{name}/read", spec, True, True, name)


def split(servers: int, *parameters: Variable) -> dict[str, tuple[int, ...]]:
    large = larger_than_a_share(parameters, servers)
    return rows_of_parts(parameters, servers, [v.name for v in large if is_divisible(v)])


def test_what_is_no_larger_than_a_share_stays_whole():
    assert split(2, parameter("a", 50, 16), parameter("b", 50, 16)) == {}
    assert split(1, parameter("a", 50, 16)) == {}


def test_parts_fill_up_what_whole_ones_leave_free():
    # A share is 100 rows: b leaves 60 of a server's.
    assert split(2, parameter("a", 160, 16), parameter("b", 40, 16)) == {"a": (100, 60)}
    assert split(3, parameter("a", 300, 16)) == {"a": (100, 100, 100)}
    assert split(3, parameter("a", 7, 16)) == {"a": (2, 2, 3)}


def test_two_may_be_larger_than_a_share():
    found = split(4, parameter("a", 200, 16), parameter("b", 150, 16), parameter("c", 50, 16))
    assert found == {"a": (100, 100), "b": (100, 50)}


def test_parts_begin_at_whole_vectors():
    """Of 64 bytes, so that kernels compute the same last elements one by one."""
    assert split(2, parameter("a", 101)) == {"a": (48, 53)}
    assert split(2, parameter("a", 30, 5)) == {"a": (16, 14)}
    assert not is_divisible(parameter("a", 16, 5))
    assert not is_divisible(parameter("a"))


@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from([1, 3, 8, 16])), min_size=1),
    st.integers(1, 5),
)
def test_the_parts_are_the_whole(shapes, servers):
    parameters = [parameter(f"v{number}", *shape) for number, shape in enumerate(shapes)]
    rows_of = {v.name: v.spec.shape[0] for v in parameters}
    for name, rows in split(servers, *parameters).items():
        assert sum(rows) == rows_of[name]
        assert min(rows) > 0
        assert 1 < len(rows) <= servers
