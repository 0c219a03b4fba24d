"""A program that is run as a script, by several processes in other surroundings; prints what became of each function.

``python script.py CACHE_FOLDER [MORE]``
"""

import json
import os
import random
import sys
import types

import helper_of_script as helper
import torch

import compile_api

NAMES = {"one", "two", "three", "four"}


def local(x):
    return x * 3  # the line that another script has otherwise


def same(x):
    return x * 2 + 1


def ordered(x):
    for name in {"one", "two", "three", "four", f"five{x.ndim}"}:
        x = x * len(name) + len(name)
    return x


def ordered_names(x):
    for name in NAMES:
        x = x * len(name) + 1
    return x


def hashed(x):
    return x * (hash("a text") % 1000)


def written(x):
    """A text of which the number says the order."""
    text = "%s" % ({"one", "two", "three", f"four{x.ndim}"},) + repr([1, frozenset(("five", "six", "seven"))])
    return x * (1 + text.index("two")) + text.index("six")


def written_numbers(x):
    return x * str({7, 2, 5}).index("2") + ("one" in {"one", "two"})


def asserted(x):
    assert x.ndim != 7
    return x + (1 if __debug__ else 2)


def arguments(x):
    return x * len(sys.argv)


def folder(x):
    return x * len(os.getcwd()) + os.path.exists("marker")


def helped(x):
    return helper.scaled(x)


def of_main(x):
    return local(x) + len(__name__)


def of_path(x):
    return x + len(sys.path[0]) + len(sys.flags.__class__.__name__)


def drawn(x):
    return x * random.Random(len(sys.argv)).random()


def variable(x):
    return x * float(os.environ.get("A_FACTOR", "1"))


CELL = """
def cell(x):
    return x * CELL_FACTOR + 1
CELL_FACTOR = 4 + len(sys.argv)
"""
exec(compile(CELL, "<cell 1>", "exec"), globals())
made = types.FunctionType(compile("lambda x: x * 7", "<made>", "eval").co_consts[0], globals(), "made")


def main():
    x = torch.arange(3.0)
    found = {}
    options = {"program_cache": True, "cache_dir": sys.argv[1]}
    functions = (same, ordered, ordered_names, hashed, written, written_numbers, asserted, arguments, folder, helped, of_main, of_path,
                 drawn, variable, globals()["cell"], made)  # fmt: skip
    for function in functions:
        compiled = compile_api.compile(function, backend="aot_eager", options=options)
        right = torch.equal(compiled(x), function(x))
        told = [[p.status, p.reason] for p in compiled.report().programs]
        name = "made" if function is made else function.__name__
        found[name] = {"right": right, "told": told, "captured": compiled.report().seconds.get("capture", 0) > 0}
    print(json.dumps(found))


main()
