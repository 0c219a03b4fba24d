"""Saved values that the region's user can write before the backward pass.

Of eager's own saved tensors such a write is an error. Where eager saves something else, and the backward graph reads an
input or a result all the same (to make that again from it), it has to be given a copy.
"""

from __future__ import annotations

from collections.abc import Collection

import torch.fx

from aot_autograd.trace.outcome import Joint
from aot_autograd.trace.saves import Place

__all__ = ["checked_late", "copied", "kept_anyway", "may_be_copied", "places", "tangents_that_need"]

#: Inputs that nobody has but the runtime.
_HIDDEN = frozenset({"size", "rng_seed", "tangent"})


def places(joint: Joint) -> dict[torch.fx.Node, Place]:
    """The forward values in the user's memory, and where."""
    env = joint.envelope
    found: dict[torch.fx.Node, Place] = {}
    for i, (node, desc) in enumerate(zip(env.placeholders(), env.inputs, strict=True)):
        if desc.kind not in _HIDDEN:
            found[node] = ("input", i)
    for i, node in enumerate(env.results()[: joint.outcome.user_outputs]):  # which may be written otherwise by now
        found[node] = ("output", i)
    return found


def tangents_that_need(joint: Joint, saved: Collection[torch.fx.Node] = ()) -> dict[torch.fx.Node, frozenset[int]]:
    """By forward value, the tangents (by position) for whose gradients it is read as it was in the forward pass, or
    something that is made of it.

    Args:
        saved: values that are not made again of others.
    """
    env = joint.envelope
    coming: dict[torch.fx.Node, int] = {}  # sets of tangents, as bits
    given = [node for node, desc in zip(env.placeholders(), env.inputs, strict=True) if desc.kind == "tangent"]
    for k, node in enumerate(given):
        coming[node] = 1 << k
    late = set()
    for node in env.graph.nodes:
        meta = node.meta
        if "late" in meta:
            late.add(node)
        if "backward" in meta:
            bits = 0
            for operand in node.all_input_nodes:
                bits |= coming.get(operand, 0)
            coming[node] = bits
    need: dict[torch.fx.Node, int] = {}
    for node in reversed(env.graph.nodes):
        if node in late:
            need[node] = 0  # it is to read what is there then
            continue
        if node.op == "output":
            # A gradient that hangs on no tangent may be asked for with any.
            gradients = env.results()[len(joint.outcome.nodes) :]
            need.update((result, (1 << len(given)) - 1) for result in gradients if isinstance(result, torch.fx.Node))
        bits = need.get(node, 0)
        for user in node.users:
            if user not in saved and user not in late:
                bits |= coming.get(user) or need[user]  # of the output none
        need[node] = bits
    sets = {bits: frozenset(k for k in range(len(given)) if bits >> k & 1) for bits in set(need.values())}
    return {node: sets[bits] for node, bits in need.items()}


def copied(joint: Joint, saved: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """Those of the saved values of which the backward graph is given copies: the user's, where eager saves others."""
    chosen = set(saved)
    visible = {node: place for node, place in _not_late(joint).items() if node in chosen}
    if all(len(joint.saved_by_eager.get(place, ())) == len(joint.tangents) for place in visible.values()):
        return set()
    need = tangents_that_need(joint, chosen)
    return {node for node, place in visible.items() if need[node] - joint.saved_by_eager.get(place, frozenset())}


def may_be_copied(joint: Joint) -> set[torch.fx.Node]:
    """The inputs of which the backward graph may be given copies, whatever else is saved."""
    inputs = {node: place for node, place in _not_late(joint).items() if place[0] == "input"}
    if all(len(joint.saved_by_eager.get(place, ())) == len(joint.tangents) for place in inputs.values()):
        return set()
    need = tangents_that_need(joint)
    return {node for node, place in inputs.items() if need[node] - joint.saved_by_eager.get(place, frozenset())}


def kept_anyway(joint: Joint) -> set[torch.fx.Node]:
    """The results that a call keeps as eager's nodes do, and that the backward graph may be given as they are."""
    results = {node: place for node, place in places(joint).items() if place[0] == "output"}
    saved = {node: joint.saved_by_eager.get(place, frozenset()) for node, place in results.items()}
    if not any(saved.values()):
        return set()
    need = tangents_that_need(joint)
    return {node for node, by in saved.items() if by and node.op != "placeholder" and need[node] <= by}


def checked_late(joint: Joint, names: Collection[str | None]) -> dict[Place, frozenset[int]]:
    """By place of an input that custom backwards read late, the tangents for whose gradients the backward graph reads
    it as it was in the forward pass, too: after a write these are an error.

    Args:
        names: of the values that are saved.
    """
    if not joint.late:
        return {}
    saved = {node for node in joint.envelope.graph.nodes if node.name in names}
    need, nodes = tangents_that_need(joint, saved), joint.envelope.placeholders()
    return {("input", i): need[nodes[i]] for i in joint.late}


def _not_late(joint: Joint) -> dict[torch.fx.Node, Place]:
    late = {("input", i) for i in joint.late}
    return {node: place for node, place in places(joint).items() if place not in late}
