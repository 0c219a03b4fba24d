"""The memory plan on random step lists: no buffer is taken while it is needed, and the peak does not rise."""

from __future__ import annotations

import random

import pytest
import torch

from inductor_gen.kernel.ir import nbytes
from inductor_gen.loops.graph import Node
from inductor_gen.plan.memory import Footprint, lightest_order, peak, plan_memory
from prims.spec import TensorSpec


def hint(size):
    return int(size.args[0])


def buffer(number: int, elements: int, kind: str = "pointwise") -> Node:
    return Node(number, kind, "op", (), TensorSpec((elements,), torch.float32, torch.device("cpu")))


def key_of(node: Node):
    return (node.shape, node.dtype)


def random_steps(seed: int, count: int = 40):
    """Steps, the buffers that are returned and the inputs that may be freed."""
    rng = random.Random(seed)
    number = iter(range(10**6))
    sizes = [rng.choice([16, 64, 256, 1024]) for _ in range(3)]
    inputs = [buffer(next(number), rng.choice(sizes), "input") for _ in range(6)]
    alive = list(inputs)
    steps = []
    for _ in range(count):
        read = tuple(dict.fromkeys(rng.choice(alive[-12:]) for _ in range(rng.randint(1, 3))))
        kernel = rng.random() < 0.7
        made = tuple(
            buffer(next(number), rng.choice(sizes), "pointwise" if kernel else "extern")
            for _ in range(rng.choice([1, 1, 1, 2]))
        )
        pairs = ((m, r) for m in made for r in read if r.kind == "pointwise" and key_of(m) == key_of(r))
        overwrites = tuple(pairs) if kernel and rng.random() < 0.5 else ()
        extra = 0 if kernel else rng.choice([0, 0, 4096])
        gives_away = not kernel and rng.random() < 0.2
        steps.append(Footprint(made, read, kernel, overwrites, extra, gives_away))
        alive += made
    made_at_all = [n for step in steps for n in step.made]
    returned = rng.sample(made_at_all, 4)
    return steps, returned, inputs[:4]


def replay(steps, plan, returned, freed) -> int:
    """Run the plan on imaginary memory; returns its peak. Fails where a buffer is read after its memory has gone."""
    holder: dict[Node, Node] = {}  # a piece of memory, by its first buffer -> the buffer in it
    place: dict[Node, Node] = {}  # buffer -> its memory
    inputs = {n for step in steps for n in step.read if n.kind == "input"}
    live = sum(nbytes(n, hint) for n in inputs & set(freed))
    highest = live
    begin = 0
    last = {n: k for k, step in enumerate(steps) for n in (*step.made, *step.read)}
    for k, step in enumerate(steps):
        for node in step.read:
            assert node.kind == "input" or holder[place[node]] is node
        for node in step.made:
            old = plan.takes.get(node)
            if old is None:
                place[node] = node
                live += nbytes(node, hint)
            else:
                assert step.kernel and key_of(old) == key_of(node) and old not in returned
                assert last[old] < k or (last[old] == k and (node, old) in step.overwrites)
                assert holder[place[old]] is old
                place[node] = place[old]
            holder[place[node]] = node
        highest = max(highest, live + step.extra)
        if k in plan.launch_after:
            over = set(plan.takes.values())
            for j in range(begin, k + 1):
                for node in dict.fromkeys((*steps[j].made, *steps[j].read)):
                    if last[node] == j and node not in returned and node not in over:
                        live -= nbytes(node, hint) if node.kind != "input" or node in freed else 0
            begin = k + 1
        elif not (step.kernel and steps[k + 1].kernel):
            pytest.fail("an operator runs inside a launch")
    return highest


@pytest.mark.parametrize("seed", range(60))
def test_plans_share_memory_only_where_it_is_free_and_keep_the_peak(seed):
    steps, returned, freed = random_steps(seed)
    plan = plan_memory(steps, returned, freed, key_of, hint)
    assert replay(steps, plan, returned, freed) <= peak(steps, returned, freed, hint)


def test_memory_is_shared_and_launches_are_joined():
    """The plan does something: most buffers of equal size take over another's memory, most kernels share launches."""
    taken = made = cuts = kernels = 0
    for seed in range(20):
        steps, returned, freed = random_steps(seed)
        plan = plan_memory(steps, returned, freed, key_of, hint)
        taken += len(plan.takes)
        made += sum(len(step.made) for step in steps if step.kernel)
        cuts += len(plan.launch_after)
        kernels += len(steps)
    assert taken > made * 0.3 and cuts < kernels * 0.8


@pytest.mark.parametrize("seed", range(40))
def test_an_order_keeps_dependencies_and_never_costs_more(seed):
    steps, returned, freed = random_steps(seed)
    maker = {n: k for k, step in enumerate(steps) for n in step.made}
    needs = {k: {maker[n] for n in step.read if n in maker} for k, step in enumerate(steps)}
    order = list(range(len(steps)))
    found = lightest_order(dict(enumerate(steps)), order, needs, returned, freed, hint)
    assert sorted(found) == order
    at = {k: position for position, k in enumerate(found)}
    assert all(at[source] < at[k] for k in order for source in needs[k])
    before = peak(steps, returned, freed, hint)
    assert peak([steps[k] for k in found], returned, freed, hint) <= before


def test_a_large_gradient_comes_last():
    """Four sums and a large scatter read five values: the scatter's result is made when the values have gone."""
    values = [buffer(k, 1000) for k in range(5)]
    results = [buffer(10, 100_000), *(buffer(11 + k, 10) for k in range(4))]
    make = Footprint(tuple(values), ())
    steps = {0: make, **{1 + k: Footprint((results[k],), (values[k],)) for k in range(5)}}
    needs = {k: ({0} if k else set()) for k in steps}
    assert lightest_order(steps, list(steps), needs, results, (), hint) == [0, 2, 3, 4, 5, 1]
