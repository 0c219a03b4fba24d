/* The module `dynamo_capture._native` and its functions; `_native.pyi` documents them. */
#include "capture.h"

static PyObject *
native_set_active(PyObject *Py_UNUSED(module), PyObject *context)
{
    if (context != Py_None && !Py_IS_TYPE(context, &Context_Type)) {
        return PyErr_Format(PyExc_TypeError, "set_active: expected a Context or None, not %R", context);
    }
    Context *previous = hook_swap_active(context == Py_None ? NULL : (Context *)Py_NewRef(context));
    return previous != NULL ? (PyObject *)previous : Py_NewRef(Py_None);
}

static PyObject *
native_get_active(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    Context *context = hook_active();
    return Py_NewRef(context != NULL ? (PyObject *)context : Py_None);
}

static PyObject *
native_set_eager(PyObject *Py_UNUSED(module), PyObject *answer)
{
    int eager = PyObject_IsTrue(answer);
    if (eager < 0) {
        return NULL;
    }
    hook_all_eager = eager;
    Py_RETURN_NONE;
}

static PyObject *
native_mark(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code;
    int action;
    if (!PyArg_ParseTuple(args, "O!i:mark", &PyCode_Type, &code, &action)) {
        return NULL;
    }
    if (action < ACTION_RUN || action > ACTION_TRACE) {
        return PyErr_Format(PyExc_ValueError, "mark: unknown action %d", action);
    }
    if (hook_mark((PyCodeObject *)code, action) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
require_code(PyObject *code)
{
    if (!PyCode_Check(code)) {
        PyErr_Format(PyExc_TypeError, "expected a code object, not %R", code);
        return -1;
    }
    return 0;
}

static PyObject *
native_marked(PyObject *Py_UNUSED(module), PyObject *code)
{
    return require_code(code) < 0 ? NULL : PyLong_FromLong(hook_marked((PyCodeObject *)code));
}

static PyObject *
native_entries(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *code, *context = Py_None;
    if (!PyArg_ParseTuple(args, "O!|O:entries", &PyCode_Type, &code, &context)) {
        return NULL;
    }
    if (context != Py_None && !Py_IS_TYPE(context, &Context_Type)) {
        return PyErr_Format(PyExc_TypeError, "entries: expected a Context or None, not %R", context);
    }
    return hook_entries((PyCodeObject *)code, context == Py_None ? NULL : (Context *)context);
}

static PyObject *
native_reset_code(PyObject *Py_UNUSED(module), PyObject *code)
{
    if (require_code(code) < 0 || hook_reset_code((PyCodeObject *)code) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
native_reset_all(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    hook_reset_all();
    Py_RETURN_NONE;
}

static PyObject *
native_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    return Py_BuildValue("{s:K,s:K,s:K,s:K}", "frames", hook_stats.frames, "hits", hook_stats.hits, "misses",
                         hook_stats.misses, "translations", hook_stats.translations);
}

static PyObject *
native_reset_stats(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    memset(&hook_stats, 0, sizeof hook_stats);
    Py_RETURN_NONE;
}

/* Runs in the emitted code: object.__setattr__(owner, name, value), without what calls of a slot's wrapper cost. */
static PyObject *
native_store_attribute(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 3) {
        return PyErr_Format(PyExc_TypeError, "store_attribute: expected an object, a name and a value");
    }
    if (PyObject_GenericSetAttr(args[0], args[1], args[2]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The same of an OrderedDict, also of a subclass with a __setitem__ of its own: the dict's items are set in order. */
static PyObject *
native_fill_ordered(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyODict_Check(args[0]) || !PyDict_CheckExact(args[1])) {
        return PyErr_Format(PyExc_TypeError, "fill_ordered: expected an OrderedDict and a dict");
    }
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(args[1], &position, &key, &value)) { /* nobody else has this dict */
        if (PyODict_SetItem(args[0], key, value) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
native_looks_up_plainly(PyObject *Py_UNUSED(module), PyObject *cls)
{
    if (!PyType_Check(cls)) {
        return PyErr_Format(PyExc_TypeError, "looks_up_plainly: %R is no class", cls);
    }
    return PyBool_FromLong(((PyTypeObject *)cls)->tp_getattro == PyObject_GenericGetAttr);
}

static PyObject *
native_dict_entry(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *dict, *key, *value;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "O!n:dict_entry", &PyDict_Type, &dict, &place)) {
        return NULL;
    }
    return place >= 0 && guard_dict_entry(dict, place, &key, &value) ? PyTuple_Pack(2, key, value) : Py_NewRef(Py_None);
}

static PyMethodDef native_methods[] = {
    {"set_active", native_set_active, METH_O, "Make a context this thread's; returns the previous one."},
    {"get_active", native_get_active, METH_NOARGS, "This thread's active context."},
    {"set_eager", native_set_eager, METH_O, "Whether calls of compiled callables run without the hook."},
    {"mark", native_mark, METH_VARARGS, "Set what the hook does with a code object."},
    {"looks_up_plainly", native_looks_up_plainly, METH_O, "Whether a class's instances look up attributes as object's."},
    {"marked", native_marked, METH_O, "The remembered action of a code object."},
    {"entries", native_entries, METH_VARARGS, "The cached entries of a code object."},
    {"reset_code", native_reset_code, METH_O, "Drop all entries of a code object and its action."},
    {"reset_all", native_reset_all, METH_NOARGS, "reset_code for every code object with entries."},
    {"init_torch", tensor_init, METH_VARARGS, "Called by dynamo_capture.hook.init_torch."},
    {"use_native", tensor_use_native, METH_VARARGS, "Switch the fast paths of tensor and state guards."},
    {"read_tensor", tensor_read, METH_O, "What the guards see of a tensor."},
    {"state_words", tensor_state_words, METH_NOARGS, "What the guards see of torch's global state."},
    {"dict_entry", native_dict_entry, METH_VARARGS, "The entry at a place of a dict's table, None where there is none."},
    {"store_attribute", (PyCFunction)(void (*)(void))native_store_attribute, METH_FASTCALL, "object.__setattr__."},
    {"fill_ordered", (PyCFunction)(void (*)(void))native_fill_ordered, METH_FASTCALL, "Set items of an OrderedDict."},
    {"stats", native_stats, METH_NOARGS, "Counters since the last reset_stats."},
    {"reset_stats", native_reset_stats, METH_NOARGS, "Set the counters to zero."},
    {NULL},
};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dynamo_capture._native",
    .m_doc = "The frame hook and the guard evaluator.",
    .m_size = -1,
    .m_methods = native_methods,
};

static int
add_types(PyObject *module)
{
    if (PyType_Ready(&Death_Type) < 0) {
        return -1;
    }
    PyTypeObject *types[] = {&Context_Type, &Entry_Type, &Activate_Type, &GuardTree_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

PyMODINIT_FUNC
PyInit__native(void)
{
    PyObject *module = PyModule_Create(&native_module);
    if (module == NULL) {
        return NULL;
    }
    if (hook_init() < 0 || add_types(module) < 0 || PyModule_AddIntConstant(module, "RUN", ACTION_RUN) < 0
        || PyModule_AddIntConstant(module, "SKIP", ACTION_SKIP) < 0
        || PyModule_AddIntConstant(module, "SKIP_RECURSIVE", ACTION_SKIP_RECURSIVE) < 0
        || PyModule_AddIntConstant(module, "TRACE", ACTION_TRACE) < 0
        || PyModule_AddIntConstant(module, "LEAVE", ACTION_LEAVE) < 0
        || PyModule_AddIntConstant(module, "BEFORE", NOTICE_BEFORE) < 0
        || PyModule_AddIntConstant(module, "RAN", NOTICE_RAN) < 0
        || PyModule_AddIntConstant(module, "RAISED", NOTICE_RAISED) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
