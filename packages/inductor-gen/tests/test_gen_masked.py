"""Which of two graphs serves a call, by what its attention masks are: the guesses and what follows a wrong one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from inductor_gen.rewrite.masks import Condition, Question
from inductor_gen.runtime.masked import Answer, Asker, ByMasks, asker_for


class Later(Answer):
    """An answer that comes when it is waited for, or when the test says so."""

    def __init__(self, value: bool) -> None:
        super().__init__(value)
        self.waited = False
        self.there = False

    def wait(self) -> bool:
        self.waited = True
        return self.value

    def ready(self) -> bool:
        return self.there or self.waited


class Ahead(Asker):
    """Asks as on a GPU: is the first input true? The state that it keeps is the default generator's."""

    ahead = True

    def __init__(self) -> None:
        self.answers: list[Later] = []
        self.capturing = False
        self.restored = 0

    def ask(self, inputs: Any) -> Answer:
        self.answers.append(Later(bool(inputs[0])))
        return self.answers[-1]

    def unknowable(self) -> bool:
        return self.capturing

    def state(self) -> Any:
        return torch.get_rng_state()

    def restore(self, state: Any) -> None:
        self.restored += 1
        torch.set_rng_state(state)


class Graphs:
    """The two graphs; each says who it is, and draws a random number. ``fails``: the usual graph raises."""

    def __init__(self) -> None:
        self.asker = Ahead()
        self.made = 0
        self.fails = False
        self.ran: list[str] = []
        self.call = ByMasks(self.asker, self.usual, self.make)

    def make(self) -> Any:
        self.made += 1
        return self.general

    def usual(self, args: Any) -> list[Any]:
        self.ran.append("usual")
        if self.fails:
            raise ValueError("no")
        return ["usual", float(torch.rand(()))]

    def general(self, args: Any) -> list[Any]:
        self.ran.append("general")
        return ["general", float(torch.rand(()))]

    def who(self, good: bool) -> str:
        return self.call((good,))[0]


def test_the_first_call_waits_and_later_ones_guess() -> None:
    g = Graphs()
    assert g.who(True) == "usual" and g.made == 0
    assert g.who(True) == "usual" and g.asker.answers[-1].waited
    assert g.ran == ["usual", "usual"] and g.made == 0


def test_a_wrong_guess_runs_the_general_graph_with_the_same_random_numbers() -> None:
    g = Graphs()
    g.who(True)
    torch.manual_seed(3)
    name, number = g.call((False,))
    assert name == "general" and g.ran == ["usual", "usual", "general"] and g.asker.restored == 1
    after = torch.rand(())
    torch.manual_seed(3)
    assert number == float(torch.rand(())) and torch.equal(after, torch.rand(()))


def test_after_a_wrong_guess_the_general_graph_serves_until_the_answers_are_yes_again() -> None:
    g = Graphs()
    g.who(True)
    g.who(False)
    assert [g.who(True) for _ in range(2)] == ["general"] * 2
    assert not g.asker.answers[-1].waited  # nobody waits for an answer that changes nothing
    for _ in range(6):
        g.asker.answers[-1].there = True
        g.who(True)
    assert g.ran[-1] == "usual"
    g.who(False)  # a second wrong guess: longer
    ran = len(g.ran)
    for _ in range(4):
        g.asker.answers[-1].there = True
        assert g.who(True) == "general"
    for _ in range(4):
        g.asker.answers[-1].there = True
        g.who(True)
    assert "usual" in g.ran[ran:]


@pytest.mark.parametrize("seed", range(20))
def test_no_result_is_of_the_wrong_graph_whatever_the_contents(seed: int) -> None:
    g = Graphs()
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: float(torch.rand((), generator=generator))
    for _ in range(200):
        good = draw() < 0.1 + 0.04 * seed
        for answer in g.asker.answers[-3:]:
            answer.there = answer.there or draw() < 0.5
        assert g.who(good) == "general" or good
    assert len(g.ran) < 300


def test_an_exception_of_a_wrong_guess_is_none() -> None:
    g = Graphs()
    g.who(True)
    g.fails = True
    with pytest.raises(ValueError):
        g.who(True)
    assert g.who(False) == "general"


def test_a_list_is_given_up_so_that_nothing_is_guessed() -> None:
    g = Graphs()
    g.who(True)
    assert g.call([False])[0] == "general" and g.ran == ["usual", "general"]
    assert g.call([True])[0] == "usual"


def test_what_may_not_run_twice_waits_for_the_answer() -> None:
    g = Graphs()
    g.call = ByMasks(g.asker, g.usual, g.make, repeatable=False)
    for good in (True, False, True):
        g.who(good)
    assert g.ran == ["usual", "general", "usual"]


def test_the_general_graph_serves_while_nothing_can_be_asked() -> None:
    g = Graphs()
    g.who(True)
    g.asker.capturing = True
    asked = len(g.asker.answers)
    assert g.who(True) == "general" and len(g.asker.answers) == asked


def test_threads_make_one_general_graph_and_get_their_own_results() -> None:
    g = Graphs()
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(300):
            good = bool(torch.rand((), generator=generator) < 0.5)
            if g.who(good) == "usual" and not good:
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and g.made == 1


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("ones", torch.ones(3, 4, dtype=torch.bool), torch.tensor([[True, False]])),
        ("ones", torch.ones(3, 4, dtype=torch.int64), torch.tensor([[1, 2]])),
        ("zeros", torch.zeros(3, 4, dtype=torch.bool), torch.tensor([[True, False]])),
        ("zeros", torch.zeros(3, 4), torch.tensor([[0.0, float("nan")]])),
        ("triangle", torch.ones(2, 3, 3, dtype=torch.bool).tril(), torch.ones(3, 3, dtype=torch.bool)),
        ("triangle", torch.full((3, 3), float("-inf")).triu(1), torch.full((3, 3), -5.0).triu(1)),
    ],
)
def test_patterns(pattern: str, good: torch.Tensor, bad: torch.Tensor) -> None:
    asker = asker_for(Question((Condition((1,), (), pattern),), torch.device("cpu")), False)
    assert asker.ask((None, good)).wait() is True
    assert asker.ask((None, bad)).wait() is False
    assert asker.ask((None, good)).wait() is True
