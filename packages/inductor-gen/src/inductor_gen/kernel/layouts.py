"""The layouts of the values that kernels keep for one another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from inductor_gen.fuse.cluster import Cluster, Fusion
from inductor_gen.layout.record import Layout, Prepared, channels_last
from inductor_gen.loops.graph import Node
from inductor_gen.loops.index import ONE, contiguous_strides
from prims.spec import expr as ex

__all__ = ["follow_layouts"]


def follow_layouts(
    prepared: Prepared, fusion: Fusion, order: Sequence[Cluster], stored: Mapping[int, Collection[Node]]
) -> dict[Node, Layout]:
    """The layouts of all buffers: a kept value gets its same-shaped inputs' where these agree on a dense one (channels
    last), else a row-major one. ``order`` has producers first."""
    layouts = dict(prepared.layouts)
    for cluster in order:
        for node in sorted(stored.get(cluster.id, ()), key=lambda n: n.id):
            if node not in layouts:
                layouts[node] = _followed(fusion, cluster, node, prepared, layouts)
    return layouts


def _followed(
    fusion: Fusion, cluster: Cluster, node: Node, prepared: Prepared, layouts: Mapping[Node, Layout]
) -> Layout:
    row_major = Layout(contiguous_strides(node.shape))
    if len(node.shape) < 4:
        return row_major
    home = cluster.homes[node]
    for other in cluster.nodes:
        for base in fusion.bases(other):
            if prepared.images.get(base) == node.shape:
                return Layout(channels_last(node.shape))
            layout = layouts.get(base)
            if layout is None or base.shape != node.shape or fusion.of.get(base) is cluster:
                continue
            if cluster.operands[other] == home and layout.strides != row_major.strides and _dense(base, layout):
                return layout
    return row_major


def _dense(node: Node, layout: Layout) -> bool:
    """Do the strides visit every element of a block exactly once?"""
    left = {(s, n) for s, n in zip(layout.strides, node.shape, strict=True) if n is not ONE}
    step = ONE
    while left:
        found = next((pair for pair in left if pair[0] is step), None)
        if found is None:
            return False
        left.remove(found)
        step = ex.mul(step, found[1])
    return True
