"""Running a list of kernels in one call from Python.

A launcher is a C function that the system's compiler builds and the kernel cache keeps, like any kernel. Python calls
it as a builtin function, directly with tensors: neither pointers nor arrays become Python objects on the way. It is
written without Python's headers, which not every machine has; what it needs of the interpreter (stable functions, all
of them) and of PyTorch is handed to it by address, once.

The table of a list of kernels belongs to the builtin function, as the ``bytes`` that it is bound to.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from inductor_gen.unit import Unit
from prims.records import record

__all__ = [
    "GPU_LAUNCHER", "LAUNCHER", "UNALIGNED", "Call", "Launcher", "Layout", "Program", "Run", "as_launcher",
    "launcher_for",
]

UNALIGNED = -2
METHOD_SIZE = 32  # bytes of an entry in the table of methods

_TEXT = """\
/* It waits for memory, not for arithmetic: at -O3 it takes twice as long to compile and runs no faster. */
#pragma GCC push_options
#pragma GCC optimize("O1")
typedef struct { const char* name; void* function; int flags; const char* doc; } ql_method;

/* What the Python side fills in, one word each. */
static struct {
    char* (*bytes)(void*);
    void* (*pointer)(void*);
    long long (*number)(void*);
    void* (*new_number)(long long);
    void* (*call_method)(void*, const char*, const char*, ...);
    void (*release)(void*);
    void* (*occurred)(void);
    void (*raise)(void*, const char*);
    void* type_error;
    void* (*leave)(void);
    void (*enter)(void*);
    int (*data)(void*, void**);  /* of an at::Tensor; 0 where one of these or the places below are not known */
    int (*dims)(void*, int64_t*);
    int (*strides)(void*, int64_t**);
    int64_t type_at, tensor_at;  /* the bytes into a Python object at which its type and its at::Tensor stand */
    void *tensor, *parameter;    /* the types whose objects are so */
} ql;

/* The at::Tensor in a Python object; 0 where it is not known. */
static void* ql_tensor(void* x) {
    void* type = ql.data ? *(void**)((char*)x + ql.type_at) : 0;
    return type && (type == ql.tensor || type == ql.parameter) ? (char*)x + ql.tensor_at : 0;
}

static int ql_pointer(void* x, char** out) {
    void *value = 0, *tensor = ql_tensor(x);
    if (tensor && !ql.data(tensor, &value)) {
        *out = (char*)value;
        return 1;
    }
    void* number = ql.call_method(x, "data_ptr", 0);
    if (!number) return 0;
    value = ql.pointer(number);
    ql.release(number);
    *out = (char*)value;
    return value || !ql.occurred();
}

typedef int ql_start(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                     void**);

#if QL_GPU
/* Write words, and the addresses after the first one, to the first one: by launches of a kernel (its function and how
   many words it takes are at `writer`) that gets them as its parameters, so that nothing is copied when it runs. */
static int ql_table(const int64_t* writer, ql_start* ql_launch, void* stream, void* const* p, int64_t pointers,
                    const int64_t* numbers, int64_t words) {
    const int64_t room = writer[1], total = words + pointers - 1;
    int64_t taken[room];
    for (int64_t first = 0; first < total; first += room) {
        int count = (int)(total - first < room ? total - first : room);
        char* place = (char*)p[0] + 8 * first;
        void* args[] = {taken, &place, &count};
        for (int k = 0; k < count; k++)
            taken[k] = first + k < words ? numbers[first + k] : (int64_t)(intptr_t)p[first + k - words + 1];
        const unsigned blocks = (unsigned)(count + 255) / 256;
        const int code = ql_launch((void*)(intptr_t)writer[0], blocks, 1, 1, 256, 1, 1, 0, stream, args, 0);
        if (code) return code;
    }
    return 0;
}
#endif

/* The kernels on the CPU, or on a GPU's stream; 0, or what a kernel met in the data, or the driver's error. */
static long long ql_kernels(const int64_t* t, void* const* slot, const int64_t* sizes, int64_t gpu, void* stream) {
    ql_start* ql_launch = 0;
    const int64_t* table = 0;
    if (gpu) {
        ql_launch = (void*)(intptr_t)t[0];
        void* context = 0;
        ((int (*)(void**))(intptr_t)t[1])(&context);
        if (!context) ((int (*)(void*))(intptr_t)t[2])((void*)(intptr_t)t[3]);
        t += 4;
        table = t;
        t += 2;
    }
    int64_t count = *t++;
    while (count--) {
        /* function, threads, shared bytes, pointers, numbers, first size, words, slots..., the words with which a table
           begins...; a grid follows the numbers */
        const int64_t numbers = t[4], words = t[6];
        const int64_t* n = sizes + t[5];
        int64_t pointers = t[3];
        const int64_t* next = t + 7 + pointers + words;
        void* p[pointers > 0 ? pointers : 1];
        for (int64_t k = 0; k < pointers; k++) p[k] = slot[t[7 + k]];
#if QL_GPU
        if (words) {
            const int code = ql_table(table, ql_launch, stream, p, pointers, t + 7 + pointers, words);
            if (code) return code;
            pointers = 1;
        }
#endif
        if (!gpu) {
            const int bad = ((int (*)(void* const*, const int64_t*))(intptr_t)t[0])(p, n);
            if (bad) return bad;
        } else if (n[numbers] > 0 && n[numbers + 1] > 0) {
            void* nothing = 0;
            void* args[pointers + numbers + 2];
            for (int64_t k = 0; k < pointers; k++) args[k] = &p[k];
            for (int64_t k = 0; k < numbers; k++) args[pointers + k] = (void*)(n + k);
            args[pointers + numbers] = args[pointers + numbers + 1] = &nothing;
            const int code = ql_launch((void*)(intptr_t)t[0], (unsigned)n[numbers], (unsigned)n[numbers + 1], 1,
                                       (unsigned)t[1], 1, 1, (unsigned)t[2], stream, args, 0);
            if (code) return code;
        }
        t = next;
    }
    return 0;
}

/* run(tensors..., sizes unless they are constants..., stream if on a GPU) */
static void* ql_run(void* self, void* const* args, intptr_t given) {
    const int64_t* t = (const int64_t*)ql.bytes(self);
    const int64_t gpu = QL_GPU ? t[0] : 0, tensors = t[1], slots = t[2], numbers = t[3], fixed = t[4];
    if (given != tensors + (fixed ? 0 : numbers) + gpu || t[0] != gpu) {
        ql.raise(ql.type_error, t[0] != gpu ? "this launcher is for kernels on the CPU"
                 : "a generated wrapper passes another number of arguments than its kernels take");
        return 0;
    }
    t += 5;
    char* base[tensors + 1];
    for (int64_t k = 0; k < tensors; k++) {
        if (!ql_pointer(args[k], &base[k])) return 0;
        if (gpu && ((intptr_t)base[k] & 15)) return ql.new_number(-2);
    }
    void* slot[slots + 1];
    for (int64_t k = 0; k < slots; k++) slot[k] = base[t[2 * k]] + t[2 * k + 1];
    t += 2 * slots;
    int64_t read[fixed ? 1 : numbers + 1];
    const int64_t* sizes = fixed ? t : read;
    if (fixed) t += numbers;
    else for (int64_t k = 0; k < numbers; k++) {
        read[k] = ql.number(args[tensors + k]);
        if (read[k] == -1 && ql.occurred()) return 0;
    }
    void* stream = 0;
    if (gpu && !(stream = ql.pointer(args[given - 1])) && ql.occurred()) return 0;
    void* state = ql.leave();
    const long long code = ql_kernels(t, slot, sizes, gpu, stream);
    ql.enter(state);
    return ql.new_number(code);
}

#if QL_GPU
/* product(out, a, b[, bias], stream[, workspace]); the table is what inductor_gen.runtime.products makes */
static void* ql_product(void* self, void* const* args, intptr_t given) {
    const int64_t* t = (const int64_t*)ql.bytes(self);
    int (*ql_matmul)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                  void*, void*, const void*, void*, size_t, void*) = (void*)(intptr_t)t[0];
    int (*ql_describe)(void*, int, const void*, size_t) = (void*)(intptr_t)t[6];
    const int64_t bytes = t[7], operands = t[8];
    char *p[4], *workspace = 0;
    if (given != operands + 1 + (bytes > 0)) {
        ql.raise(ql.type_error, "a generated wrapper passes another number of arguments than a product takes");
        return 0;
    }
    for (int k = 0; k < operands; k++) {
        if (!ql_pointer(args[k], &p[k])) return 0;
        p[k] += t[9 + k];
        if ((intptr_t)p[k] & 255) return ql.new_number(-2);
    }
    if (bytes && !ql_pointer(args[given - 1], &workspace)) return 0;
    void* stream = ql.pointer(args[operands]);
    if (!stream && ql.occurred()) return 0;
    const float one = 1, zero = 0;
    void* state = ql.leave();
    int code = 0;
    static char described;  /* where the bias is stands in the description, which threads share */
    if (operands > 3) {
        while (__atomic_test_and_set(&described, __ATOMIC_ACQUIRE)) sched_yield();
        code = ql_describe((void*)t[2], 8, &p[3], sizeof(p[3]));
    }
    if (!code)
        code = ql_matmul((void*)t[1], (void*)t[2], &one, p[2], (void*)t[3], p[1], (void*)t[4], &zero, p[0], (void*)t[5],
                      p[0], (void*)t[5], t + 13, workspace, (size_t)bytes, stream);
    if (operands > 3) __atomic_clear(&described, __ATOMIC_RELEASE);
    ql.enter(state);
    return ql.new_number(code);
}
#else
static void* ql_product(void* self, void* const* args, intptr_t given) {
    ql.raise(ql.type_error, "this launcher is for kernels on the CPU");
    return 0;
}
#endif

/* moved(tensor): 0 if it has the strides in the table, which follow their number; 1 if not, or if it cannot be told */
static void* ql_moved(void* self, void* const* args, intptr_t given) {
    const int64_t* t = (const int64_t*)ql.bytes(self);
    int64_t dims = -1, k = 0, *strides = 0;
    void* tensor = given == 1 ? ql_tensor(args[0]) : 0;
    if (!tensor || ql.dims(tensor, &dims) || ql.strides(tensor, &strides) || dims != t[0]) return ql.new_number(1);
    while (k < dims && strides[k] == t[k + 1]) k++;
    return ql.new_number(k < dims);
}

static ql_method ql_methods[] = {{"run", ql_run, 0x80 /* METH_FASTCALL */, 0}, {"product", ql_product, 0x80, 0},
                                 {"moved", ql_moved, 0x80, 0}};

void* KERNEL(const void* places) {
    __builtin_memcpy(&ql, places, sizeof(ql));
    return ql_methods;
}
#pragma GCC pop_options
"""

#: Launchers of kernels on the CPU, and of those on a GPU or of both: twice as much for a compiler.
LAUNCHER = Unit(name="quintet_launch", text="#define QL_GPU 0\n" + _TEXT)
GPU_LAUNCHER = Unit(name="quintet_launch_gpu", text="#define QL_GPU 1\n" + _TEXT)


def launcher_for(gpu: bool) -> Unit:
    """The launcher of a graph, some of whose kernels are a GPU's or none."""
    return GPU_LAUNCHER if gpu else LAUNCHER


_FUNCTIONS = (
    "PyBytes_AsString", "PyLong_AsVoidPtr", "PyLong_AsLongLong", "PyLong_FromLongLong", "PyObject_CallMethod",
    "Py_DecRef", "PyErr_Occurred", "PyErr_SetString", "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip


#: A kernel: its function's address, threads per block, bytes of shared memory, slots, how many sizes it takes beside
#: the grid, the first of these, and the words with which a table begins, its first slot. (Threads, shared memory, the
#: grid and the table are the GPU's.)
Call = tuple[int, int, int, Sequence[int], int, int, Sequence[int]]


@record(frozen=False)
class Program:
    """Kernels to be run one after the other, and their operands.

    Attributes:
        calls: the kernels.
        tensors: how many tensors a call passes.
        slots: ``(tensor, byte offset)`` of each operand.
        numbers: the sizes of all kernels, or how many a call passes.
        gpu: nothing, or what :func:`inductor_gen.runtime.cuda.driver_words` gives.
    """

    tensors: int
    slots: Sequence[tuple[int, int]]
    numbers: Sequence[int] | int
    calls: Sequence[Call] = ()
    gpu: Sequence[int] = ()
    method: ClassVar[int] = 0

    def words(self) -> list[int]:
        """The table as the C side reads it."""
        if isinstance(self.numbers, int):
            count, numbers, fixed = self.numbers, [], 0
        else:
            count, numbers, fixed = len(self.numbers), list(self.numbers), 1
        table = [int(bool(self.gpu)), self.tensors, len(self.slots), count, fixed]
        for slot in self.slots:
            table += slot
        table += [*numbers, *self.gpu, len(self.calls)]
        for function, threads, shared, slots, sizes, first, words in self.calls:
            table += [function, threads, shared, len(slots), sizes, first, len(words), *slots, *words]
        return table


@record(frozen=False)
class Layout:
    """The strides that a tensor is to have: a call gives 0 if it has them, 1 if not or if that cannot be told."""

    strides: Sequence[int]
    method: ClassVar[int] = 2

    def words(self) -> list[int]:
        """The table as the C side reads it."""
        return [len(self.strides), *self.strides]


#: A call of a program: tensors, sizes unless they are constants, the stream on a GPU; it gives 0, an error of the
#: driver, or ``UNALIGNED`` before anything ran.
Run = Callable[..., int]
Launcher = Callable[[Any], Run]


def as_launcher(address: int, quick: bool = True) -> Launcher:
    """The launcher at an address; unless ``quick`` it asks tensors for their memory by their method ``data_ptr``."""
    python = ctypes.pythonapi
    words = [ctypes.cast(getattr(python, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
    words.insert(_FUNCTIONS.index("PyErr_SetString") + 1, id(TypeError))
    words += [*(_tensor_places() if quick else (0,) * 5), id(torch.Tensor), id(torch.nn.Parameter)]
    places = (ctypes.c_uint64 * len(words))(*words)
    methods = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.addressof(places))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new_function = make(("PyCFunction_NewEx", python))

    return lambda program: new_function(methods + program.method * METHOD_SIZE, _packed(program.words()), None)


def _packed(words: Sequence[int]) -> bytes:
    return struct.pack(f"{len(words)}q", *words)


#: What was found out: once, for a mode that makes other tensors may be active at another time.
_KNOWN: list[tuple[int, ...]] = []


def _tensor_places() -> tuple[int, ...]:
    """PyTorch's C functions for the memory of an ``at::Tensor``, its dimensions and its strides, where the type stands
    in a tensor's Python object, and where the ``at::Tensor``; zeros where that cannot be found out. ``_cdata`` is what
    the ``at::Tensor`` holds."""
    if _KNOWN:
        return _KNOWN[0]
    try:
        library = ctypes.CDLL(torch._C.__file__)
        read, dims, strides = (getattr(library, f"aoti_torch_get_{name}") for name in ("data_ptr", "dim", "strides"))
    except (OSError, AttributeError):
        return (0,) * 5
    places = set()
    for tensor in (torch.empty(3, 2, device="cpu")[1:].t(), torch.nn.Parameter(torch.empty(2, device="cpu"))):
        words = list((ctypes.c_uint64 * (torch.Tensor.__basicsize__ // 8)).from_address(id(tensor)))
        if words.count(id(type(tensor))) != 1 or words.count(tensor._cdata) != 1:
            return (0,) * 5
        type_at, tensor_at = 8 * words.index(id(type(tensor))), 8 * words.index(tensor._cdata)
        memory, count, steps = ctypes.c_void_p(), ctypes.c_int64(), ctypes.POINTER(ctypes.c_int64)()
        at = ctypes.c_void_p(id(tensor) + tensor_at)
        if read(at, ctypes.byref(memory)) or dims(at, ctypes.byref(count)) or strides(at, ctypes.byref(steps)):
            return (0,) * 5
        if memory.value != tensor.data_ptr() or tuple(steps[: count.value]) != tensor.stride():
            return (0,) * 5
        places.add((type_at, tensor_at))
    if len(places) != 1:
        return (0,) * 5
    _KNOWN.append((*(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (read, dims, strides)), *places.pop()))
    return _KNOWN[0]
