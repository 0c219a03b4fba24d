/* The types Context, Entry and activate. */
#include "capture.h"
#include <stddef.h>
#include <structmember.h>

/* ------------------------------------------------------------------ Context */

static int
context_init(Context *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"filter", "translate", "tag", "notice", "plain", NULL};
    PyObject *filter, *translate, *tag = Py_None, *notice = Py_None;
    int plain = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OOp:Context", names, &filter, &translate, &tag, &notice,
                                     &plain)) {
        return -1;
    }
    if (!PyCallable_Check(filter) || !PyCallable_Check(translate)
        || (notice != Py_None && !PyCallable_Check(notice))) {
        PyErr_SetString(PyExc_TypeError, "Context: filter, translate and notice must be callable");
        return -1;
    }
    Py_XSETREF(self->notice, notice == Py_None ? NULL : Py_NewRef(notice));
    self->plain = plain;
    Py_XSETREF(self->filter, Py_NewRef(filter));
    Py_XSETREF(self->translate, Py_NewRef(translate));
    Py_XSETREF(self->tag, Py_NewRef(tag));
    return 0;
}

static int
context_traverse(Context *self, visitproc visit, void *arg)
{
    Py_VISIT(self->filter);
    Py_VISIT(self->translate);
    Py_VISIT(self->notice);
    Py_VISIT(self->tag);
    return 0;
}

static int
context_clear(Context *self)
{
    Py_CLEAR(self->filter);
    Py_CLEAR(self->translate);
    Py_CLEAR(self->notice);
    Py_CLEAR(self->tag);
    return 0;
}

static void
context_dealloc(Context *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    hook_forget_context(self);
    context_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef context_members[] = {
    {"tag", T_OBJECT_EX, offsetof(Context, tag), 0, NULL},
    {"filter", T_OBJECT_EX, offsetof(Context, filter), READONLY, NULL},
    {"translate", T_OBJECT_EX, offsetof(Context, translate), READONLY, NULL},
    {"plain", T_BOOL, offsetof(Context, plain), 0, NULL},
    {NULL},
};

PyTypeObject Context_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo_capture._native.Context",
    .tp_doc = "One compile configuration: cache entries are kept per (code object, context).",
    .tp_basicsize = sizeof(Context),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)context_init,
    .tp_dealloc = (destructor)context_dealloc,
    .tp_traverse = (traverseproc)context_traverse,
    .tp_clear = (inquiry)context_clear,
    .tp_members = context_members,
    .tp_weaklistoffset = offsetof(Context, weakrefs),
};

/* ------------------------------------------------------------------ Entry */

static int
entry_init(Entry *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"code", "guards", "tag", "compiled", NULL};
    PyObject *code, *guards = Py_None, *tag = Py_None;
    int compiled = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O$Op:Entry", names, &PyCode_Type, &code, &guards, &tag,
                                     &compiled)) {
        return -1;
    }
    if (self->code != NULL) {
        PyErr_SetString(PyExc_TypeError, "Entry: __init__ called twice");
        return -1;
    }
    if (guards != Py_None && !Py_IS_TYPE(guards, &GuardTree_Type)) {
        PyErr_Format(PyExc_TypeError, "Entry: guards must be a GuardTree or None, not %R", guards);
        return -1;
    }
    if (guards != Py_None && ((GuardTree *)guards)->owner != NULL) {
        PyErr_SetString(PyExc_ValueError, "Entry: the guard tree belongs to another entry");
        return -1;
    }
    if (hook_mark((PyCodeObject *)code, ACTION_SKIP) < 0) {
        return -1;
    }
    self->code = (PyCodeObject *)Py_NewRef(code);
    self->tag = Py_NewRef(tag);
    self->valid = true;
    self->compiled = compiled;
    if (guards != Py_None) {
        self->guards = (GuardTree *)Py_NewRef(guards);
        self->guards->owner = self;
        self->valid = self->guards->valid;
    }
    return 0;
}

static int
entry_traverse(Entry *self, visitproc visit, void *arg)
{
    Py_VISIT(self->code);
    Py_VISIT(self->guards);
    Py_VISIT(self->tag);
    Py_VISIT(self->func);
    return 0;
}

static int
entry_clear(Entry *self)
{
    /* Only reached when no cache holds the entry: a cached entry has a reference the collector cannot see. */
    GuardTree *guards = self->guards;
    self->guards = NULL;
    if (guards != NULL) {
        guards->owner = NULL;
        Py_DECREF(guards);
    }
    Py_CLEAR(self->tag);
    Py_CLEAR(self->func);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyObject_GC_UnTrack(self);
    entry_clear(self);
    Py_CLEAR(self->code);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
entry_invalidate(Entry *self, PyObject *Py_UNUSED(ignored))
{
    hook_invalidate(self);
    Py_RETURN_NONE;
}

static PyObject *
entry_get_guards(Entry *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->guards != NULL ? (PyObject *)self->guards : Py_None);
}

static PyMethodDef entry_methods[] = {
    {"invalidate", (PyCFunction)entry_invalidate, METH_NOARGS, "Remove the entry from the cache."},
    {NULL},
};

static PyMemberDef entry_members[] = {
    {"code", T_OBJECT_EX, offsetof(Entry, code), READONLY, NULL},
    {"tag", T_OBJECT_EX, offsetof(Entry, tag), 0, NULL},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), READONLY, NULL},
    {"valid", T_BOOL, offsetof(Entry, valid), READONLY, NULL},
    {"compiled", T_BOOL, offsetof(Entry, compiled), READONLY, NULL},
    {NULL},
};

static PyGetSetDef entry_getset[] = {
    {"guards", (getter)entry_get_guards, NULL, NULL, NULL},
    {NULL},
};

PyTypeObject Entry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo_capture._native.Entry",
    .tp_doc = "One compiled form of a code object.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)entry_init,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_methods = entry_methods,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
};

/* ------------------------------------------------------------------ activate */

typedef struct {
    PyObject_HEAD
    PyObject *fn;
    Context *context;
    PyObject *dict;
    PyObject *weakrefs;
    vectorcallfunc vectorcall;
} Activate;

/* Tells the context that a call runs, or ran, no compiled code: -1 with an exception refuses the call. The hook is
 * inactive meanwhile. */
static int
give_notice(Context *context, long when)
{
    PyObject *number = PyLong_FromLong(when);
    if (number == NULL) {
        return -1;
    }
    Context *saved = hook_swap_active(NULL);
    PyObject *answer = PyObject_CallOneArg(context->notice, number);
    Py_XDECREF(hook_swap_active(saved));
    Py_DECREF(number);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

/* What a call that came to no compiled graph gave: `result` (stolen), unless the context refuses it. An exception
 * that the call raised stays, whatever becomes of the notice. */
static PyObject *
after_plain_call(Context *context, PyObject *result)
{
    if (result != NULL) {
        if (give_notice(context, NOTICE_RAN) < 0) {
            Py_CLEAR(result);
        }
        return result;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (give_notice(context, NOTICE_RAISED) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, value, traceback);
    return NULL;
}

static PyObject *
activate_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Activate *self = (Activate *)callable;
    PyObject *fn = Py_NewRef(self->fn);
    Context *context = (Context *)Py_XNewRef(self->context);
    bool tells = context != NULL && context->notice != NULL;
    bool eager = hook_all_eager;
    bool told = tells && (eager || context->plain || hook_is_traced());
    if (told && give_notice(context, NOTICE_BEFORE) < 0) {
        Py_DECREF(context);
        Py_DECREF(fn);
        return NULL;
    }
    uint64_t runs = hook_compiled_runs;
    hook_compiled_runs = 0;
    Context *saved = hook_swap_active(eager ? NULL : (Context *)Py_XNewRef(context));
    PyObject *result = PyObject_Vectorcall(fn, args, nargsf, kwnames);
    Context *mine = hook_swap_active(saved);
    Py_XDECREF(mine);
    bool plain = hook_compiled_runs == 0;
    hook_compiled_runs = runs;
    if (tells && plain && !told) {
        result = after_plain_call(context, result);
    }
    Py_XDECREF(context);
    Py_DECREF(fn);
    return result;
}

static PyObject *
activate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "context", NULL};
    PyObject *fn, *context;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:activate", names, &fn, &context)) {
        return NULL;
    }
    if (!PyCallable_Check(fn)) {
        return PyErr_Format(PyExc_TypeError, "activate: %R is not callable", fn);
    }
    if (context != Py_None && !Py_IS_TYPE(context, &Context_Type)) {
        return PyErr_Format(PyExc_TypeError, "activate: context must be a Context or None, not %R", context);
    }
    Activate *self = (Activate *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->fn = Py_NewRef(fn);
    self->context = context == Py_None ? NULL : (Context *)Py_NewRef(context);
    self->vectorcall = activate_vectorcall;
    return (PyObject *)self;
}

static int
activate_traverse(Activate *self, visitproc visit, void *arg)
{
    Py_VISIT(self->fn);
    Py_VISIT(self->context);
    Py_VISIT(self->dict);
    return 0;
}

static int
activate_clear(Activate *self)
{
    Py_CLEAR(self->fn);
    Py_CLEAR(self->context);
    Py_CLEAR(self->dict);
    return 0;
}

static void
activate_dealloc(Activate *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    activate_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *
activate_get(PyObject *self, PyObject *instance, PyObject *Py_UNUSED(owner))
{
    if (instance == NULL || instance == Py_None) {
        return Py_NewRef(self);
    }
    return PyMethod_New(self, instance);
}

static PyObject *
activate_get_context(Activate *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->context != NULL ? (PyObject *)self->context : Py_None);
}

static PyObject *
activate_repr(Activate *self)
{
    return PyUnicode_FromFormat("<activate %R>", self->fn);
}

static PyMemberDef activate_members[] = {
    {"fn", T_OBJECT_EX, offsetof(Activate, fn), READONLY, NULL},
    {NULL},
};

/* What makes it a function for `inspect`, for `torch.export` and for whoever asks whether a method is overridden:
 * the attributes of functions (and of bound methods) that a `__dict__` does not hold. */
static PyObject *
activate_of_function(Activate *self, void *name)
{
    return PyObject_GetAttrString(self->fn, (const char *)name);
}

#define OF_FUNCTION(name) {name, (getter)activate_of_function, NULL, NULL, name}

static PyGetSetDef activate_getset[] = {
    OF_FUNCTION("__code__"),
    OF_FUNCTION("__defaults__"),
    OF_FUNCTION("__kwdefaults__"),
    OF_FUNCTION("__globals__"),
    OF_FUNCTION("__closure__"),
    OF_FUNCTION("__self__"),
    OF_FUNCTION("__func__"),
    {"context", (getter)activate_get_context, NULL, NULL, NULL},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL},
};

#if PY_VERSION_HEX >= 0x030E0000
/* `functools.update_wrapper` hands over what makes the annotations, from which only a function has them made. */
static PyObject *
activate_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found == NULL && PyUnicode_CompareWithASCIIString(name, "__annotations__") == 0
        && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(((Activate *)self)->fn, name);
    }
    return found;
}
#else
#define activate_getattr PyObject_GenericGetAttr
#endif

PyTypeObject Activate_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo_capture._native.activate",
    .tp_doc = "A callable that runs `fn` with `context` active on the thread.",
    .tp_basicsize = sizeof(Activate),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = activate_new,
    .tp_dealloc = (destructor)activate_dealloc,
    .tp_traverse = (traverseproc)activate_traverse,
    .tp_clear = (inquiry)activate_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Activate, vectorcall),
    .tp_descr_get = activate_get,
    .tp_dictoffset = offsetof(Activate, dict),
    .tp_weaklistoffset = offsetof(Activate, weakrefs),
    .tp_getattro = activate_getattr,
    .tp_repr = (reprfunc)activate_repr,
    .tp_members = activate_members,
    .tp_getset = activate_getset,
};
