"""Programs without Python: the host side of a graph as C, with a C interface.

    interface   what the library takes and gives                       interface.py
    operators   PyTorch's operators by its C interface                 operators.py
    host        the text of the function that runs a graph             host.py
    build       texts to one shared library                            build.py
    *.c, *.h    what every such library is made of beside that
"""
