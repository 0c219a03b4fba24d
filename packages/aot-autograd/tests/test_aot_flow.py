"""The minimum cut against networkx."""

from __future__ import annotations

import networkx
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_autograd.partition.flow import INFINITE, FlowNetwork

EDGES = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 20)), max_size=30)


@settings(deadline=None, max_examples=200)
@given(EDGES)
def test_max_flow_and_cut(edges):
    network = FlowNetwork(8)
    reference = networkx.DiGraph()
    reference.add_nodes_from(range(8))
    for start, end, capacity in edges:
        network.edge(start, end, capacity)
        if reference.has_edge(start, end):
            reference[start][end]["capacity"] += capacity
        else:
            reference.add_edge(start, end, capacity=capacity)
    flow = network.max_flow(0, 7)
    assert flow == networkx.maximum_flow_value(reference, 0, 7)
    reaching = network.reaches(7)
    assert reaching[7] and not reaching[0]
    assert flow == sum(c for a, b, c in edges if not reaching[a] and reaching[b])


def test_cut_nearest_the_sink():
    network = FlowNetwork(4)
    for start in range(3):
        network.edge(start, start + 1, 5)
    network.edge(0, 2, 0)
    assert network.max_flow(0, 3) == 5
    assert network.reaches(3) == [False, False, False, True]


def test_infinite_edges_are_not_cut():
    network = FlowNetwork(4)
    network.edge(0, 1, 7)
    network.edge(1, 2, INFINITE)
    network.edge(2, 3, 9)
    assert network.max_flow(0, 3) == 7
    assert network.reaches(3) == [False, True, True, True]
