/* What guards ask of keys, classes and functions. */
#include "capture.h"

#if PY_VERSION_HEX >= 0x030D0000 /* exported, but declared in a private header */
extern int _PySet_NextEntry(PyObject *set, Py_ssize_t *position, PyObject **item, Py_hash_t *hash);
#endif

/* ------------------------------------------------------------------ keys and elements */

/* Whether equal objects of this type are the same to every program: a C type, whose objects hold no others. */
static bool
is_plain(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    return !(type->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_HAVE_GC)) && type->tp_richcompare != NULL
           && type->tp_richcompare != PyBaseObject_Type.tp_richcompare;
}

static bool
elements_are_plain(PyObject *set)
{
    PyObject *iterator = PyObject_GetIter(set), *item;
    bool plain = iterator != NULL;
    while (plain && (item = PyIter_Next(iterator)) != NULL) {
        plain = is_plain(item);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return plain;
}

/* The same object, or equal constants of one type; no method of the program is asked. */
bool
guard_key_equal(PyObject *a, PyObject *b)
{
    if (a == b) {
        return true;
    }
    if (Py_TYPE(a) != Py_TYPE(b)) {
        return false;
    }
    if (is_plain(a)) {
        return guard_const_equal(a, b);
    }
    if (PyTuple_CheckExact(a)) {
        Py_ssize_t n = PyTuple_GET_SIZE(a);
        bool equal = n == PyTuple_GET_SIZE(b);
        for (Py_ssize_t i = 0; equal && i < n; i++) {
            equal = guard_key_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i));
        }
        return equal;
    }
    if (PyFrozenSet_CheckExact(a)) {
        return elements_are_plain(a) && elements_are_plain(b) && guard_const_equal(a, b);
    }
    return false;
}

/* Whether a set walks over these elements, in this order: it is what a loop over it sees. */
bool
guard_same_sequence(PyObject *set, PyObject *elements)
{
    if (!PyAnySet_Check(set) || PySet_GET_SIZE(set) != PyTuple_GET_SIZE(elements)) {
        return false;
    }
    Py_ssize_t position = 0;
    PyObject *item;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(elements); i++) {
        Py_hash_t hash;
        if (!_PySet_NextEntry(set, &position, &item, &hash)
            || !guard_key_equal(item, PyTuple_GET_ITEM(elements, i))) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ classes */

/* The class's own attributes (new reference). */
PyObject *
guard_class_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyType_GetDict(type);
#else
    return Py_XNewRef(type->tp_dict);
#endif
}

/* A number that changes whenever an attribute of the class or of a base does; 0: there is none now. */
static Py_ssize_t
class_version(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    if (!(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) {
        return 0;
    }
#endif
    return (Py_ssize_t)type->tp_version_tag;
}

/* `object` is (name,) for an attribute that the class does not have itself, (name, attribute) for one that it has. */
int
guard_class_attr_holds(Check *check, PyObject *value)
{
    if (!PyType_Check(value)) {
        return 0;
    }
    PyTypeObject *type = (PyTypeObject *)value;
    Py_ssize_t version = class_version(type);
    if (version != 0 && version == check->number) {
        return 1;
    }
    PyObject *dict = guard_class_dict(type), *name = PyTuple_GET_ITEM(check->object, 0);
    PyObject *expected = PyTuple_GET_SIZE(check->object) > 1 ? PyTuple_GET_ITEM(check->object, 1) : NULL;
    PyObject *found = dict != NULL ? PyDict_GetItemWithError(dict, name) : NULL;
    int holds = PyErr_Occurred() ? -1 : found == expected;
    Py_XDECREF(dict);
    if (holds == 1) {
        _PyType_Lookup(type, name); /* gives the class a version if it has none */
        check->number = class_version(type);
    }
    return holds;
}

/* Questions are (subclass, class, answer); they are asked anew when a class has been registered with an abstract one. */
int
guard_subclasses_hold(Check *check)
{
    PyObject *token = PyObject_CallNoArgs(check->pointer);
    if (token == NULL) {
        return -1;
    }
    Py_ssize_t now = PyLong_AsSsize_t(token);
    Py_DECREF(token);
    if (now == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (now == check->number) {
        return 1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(check->object); i++) {
        PyObject *question = PyTuple_GET_ITEM(check->object, i);
        int answer = PyObject_IsSubclass(PyTuple_GET_ITEM(question, 0), PyTuple_GET_ITEM(question, 1));
        if (answer < 0) {
            return -1;
        }
        if (answer != (PyTuple_GET_ITEM(question, 2) == Py_True)) {
            return 0;
        }
    }
    check->number = now;
    return 1;
}

/* ------------------------------------------------------------------ functions */

bool
guard_function_is(const Check *check, PyObject *value)
{
    if (!PyFunction_Check(value)) {
        return false;
    }
    PyFunctionObject *function = (PyFunctionObject *)value;
    return function->func_code == check->pointer && function->func_globals == check->globals;
}
