/* The GuardTree type: building and querying trees. */
#include "capture.h"
#include <stddef.h>
#include <structmember.h>

/* ------------------------------------------------------------------ death of weakly held objects */

typedef struct {
    PyObject_HEAD
    GuardTree *tree; /* borrowed; cleared by the tree */
} Death;

static PyObject *
death_call(Death *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    GuardTree *tree = self->tree;
    if (tree != NULL && tree->valid) {
        tree->valid = false;
        if (tree->owner != NULL) {
            hook_invalidate(tree->owner);
        }
    }
    Py_RETURN_NONE;
}

static void
death_dealloc(Death *self)
{
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject Death_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo_capture._native._Death",
    .tp_basicsize = sizeof(Death),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = (destructor)death_dealloc,
    .tp_call = (ternaryfunc)death_call,
};

/* A weak reference that turns the tree invalid; NULL without an exception if the object takes none. */
PyObject *
guard_watch(GuardTree *tree, PyObject *object)
{
    if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
        return NULL;
    }
    if (tree->death == NULL) {
        Death *death = PyObject_New(Death, &Death_Type);
        if (death == NULL) {
            return NULL;
        }
        death->tree = tree;
        tree->death = (PyObject *)death;
    }
    PyObject *reference = PyWeakref_NewRef(object, tree->death);
    if (reference == NULL) {
        PyErr_Clear();
    }
    return reference;
}

/* ------------------------------------------------------------------ nodes */

int
guard_may_change(GuardTree *tree)
{
    if (tree->busy) {
        PyErr_SetString(PyExc_RuntimeError, "GuardTree: cannot be extended while it is evaluated");
        return -1;
    }
    return 0;
}

int
guard_check_node(GuardTree *tree, int node)
{
    if (node <= 0 || node >= tree->nnodes) {
        PyErr_Format(PyExc_ValueError, "GuardTree: no node %d", node);
        return -1;
    }
    return 0;
}

static int
append_node(GuardTree *tree, int kind, int parent)
{
    if (tree->nnodes == tree->nodes_capacity) {
        int capacity = tree->nodes_capacity ? 2 * tree->nodes_capacity : 16;
        Node *nodes = PyMem_Realloc(tree->nodes, capacity * sizeof(Node));
        if (nodes == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        tree->nodes = nodes;
        int *roots = PyMem_Realloc(tree->roots, capacity * sizeof(int)); /* there may be one a node */
        if (roots == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        tree->roots = roots;
        tree->nodes_capacity = capacity;
    }
    int id = tree->nnodes++;
    Node *node = &tree->nodes[id];
    memset(node, 0, sizeof(Node));
    node->kind = (uint8_t)kind;
    node->parent = parent;
    node->first_child = node->last_child = node->next_sibling = -1;
    node->first_check = node->last_check = node->slot = -1;
    if (id > 0) {
        Node *above = &tree->nodes[parent];
        if (above->last_child < 0) {
            above->first_child = id;
        }
        else {
            tree->nodes[above->last_child].next_sibling = id;
        }
        above->last_child = id;
    }
    tree->prepared = false;
    return id;
}

/* The node's id as a Python int; the same (kind, parent, key, index) gives the same node. */
static PyObject *
intern_node(GuardTree *tree, int kind, int parent, PyObject *arg, Py_ssize_t index, PyObject *name)
{
    if (guard_may_change(tree) < 0 || (parent != 0 && guard_check_node(tree, parent) < 0)) {
        return NULL;
    }
    bool by_identity = kind == NODE_CONSTANT || kind == NODE_WEAK || kind == NODE_CALL;
    if (kind == NODE_ITEM && PyObject_Hash(arg) == -1) {
        PyErr_Clear();
        by_identity = true; /* a slice before Python 3.12 */
    }
    PyObject *part = by_identity   ? PyLong_FromVoidPtr(arg)
                     : arg != NULL ? Py_NewRef(arg)
                                   : Py_NewRef(Py_None);
    PyObject *key = Py_BuildValue("(iiiNn)", kind, parent, by_identity, part, index);
    if (key == NULL) {
        return NULL;
    }
    PyObject *known = PyDict_GetItemWithError(tree->interned, key);
    if (known != NULL || PyErr_Occurred()) {
        Py_DECREF(key);
        return Py_XNewRef(known);
    }
    PyObject *held = kind == NODE_WEAK ? guard_watch(tree, arg) : Py_XNewRef(arg);
    if (kind == NODE_WEAK && held == NULL) {
        Py_DECREF(key);
        return PyErr_Format(PyExc_TypeError, "GuardTree.weak: cannot create a weak reference to %R", arg);
    }
    int id = append_node(tree, kind, parent);
    PyObject *number = id < 0 ? NULL : PyLong_FromLong(id);
    if (id >= 0) {
        tree->nodes[id].arg = held;
        tree->nodes[id].index = index;
        tree->nodes[id].name = name == Py_None ? NULL : Py_XNewRef(name);
    }
    else {
        Py_XDECREF(held);
    }
    if (number != NULL && PyDict_SetItem(tree->interned, key, number) < 0) {
        Py_CLEAR(number);
    }
    Py_DECREF(key);
    return number;
}

static PyObject *
root_by_index(GuardTree *self, PyObject *args, const char *format, int kind)
{
    Py_ssize_t index;
    PyObject *name = Py_None;
    if (!PyArg_ParseTuple(args, format, &index, &name)) {
        return NULL;
    }
    if (index < 0) {
        return PyErr_Format(PyExc_ValueError, "GuardTree: negative index %zd", index);
    }
    return intern_node(self, kind, 0, NULL, index, name);
}

static PyObject *
tree_local(GuardTree *self, PyObject *args)
{
    return root_by_index(self, args, "n|O:local", NODE_LOCAL);
}

static PyObject *
tree_closure(GuardTree *self, PyObject *args)
{
    return root_by_index(self, args, "n|O:closure", NODE_CLOSURE);
}

static PyObject *
tree_closure_cell(GuardTree *self, PyObject *args)
{
    return root_by_index(self, args, "n|O:closure_cell", NODE_CLOSURE_CELL);
}

static PyObject *
root_by_name(GuardTree *self, PyObject *name, int kind)
{
    if (!PyUnicode_Check(name)) {
        return PyErr_Format(PyExc_TypeError, "GuardTree: a name must be a str, not %R", name);
    }
    return intern_node(self, kind, 0, name, 0, NULL);
}

static PyObject *
tree_global(GuardTree *self, PyObject *name)
{
    return root_by_name(self, name, NODE_GLOBAL);
}

static PyObject *
tree_globals_dict(GuardTree *self, PyObject *Py_UNUSED(ignored))
{
    return intern_node(self, NODE_GLOBALS_DICT, 0, NULL, 0, NULL);
}

static PyObject *
tree_builtin(GuardTree *self, PyObject *name)
{
    return root_by_name(self, name, NODE_BUILTIN);
}

static PyObject *
root_by_object(GuardTree *self, PyObject *args, const char *format, int kind)
{
    PyObject *object, *name = Py_None;
    if (!PyArg_ParseTuple(args, format, &object, &name)) {
        return NULL;
    }
    return intern_node(self, kind, 0, object, 0, name);
}

static PyObject *
tree_constant(GuardTree *self, PyObject *args)
{
    return root_by_object(self, args, "O|O:constant", NODE_CONSTANT);
}

static PyObject *
tree_weak(GuardTree *self, PyObject *args)
{
    return root_by_object(self, args, "O|O:weak", NODE_WEAK);
}

static PyObject *
child_by_name(GuardTree *self, PyObject *args, const char *format, int kind)
{
    int parent;
    PyObject *name;
    if (!PyArg_ParseTuple(args, format, &parent, &name) || guard_check_node(self, parent) < 0) {
        return NULL;
    }
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name); /* dict lookups compare by identity first */
    PyObject *id = intern_node(self, kind, parent, name, 0, NULL);
    Py_DECREF(name);
    return id;
}

static PyObject *
tree_attr(GuardTree *self, PyObject *args)
{
    return child_by_name(self, args, "iU:attr", NODE_ATTR);
}

static PyObject *
child_item(GuardTree *self, int parent, PyObject *key)
{
    Py_ssize_t index = 0;
    if (PyLong_CheckExact(key)) {
        index = PyLong_AsSsize_t(key);
        if (index == -1 && PyErr_Occurred()) {
            PyErr_Clear(); /* a huge dict key */
        }
    }
    return intern_node(self, NODE_ITEM, parent, key, index, NULL);
}

static PyObject *
tree_item(GuardTree *self, PyObject *args)
{
    int parent;
    PyObject *key;
    if (!PyArg_ParseTuple(args, "iO:item", &parent, &key) || guard_check_node(self, parent) < 0) {
        return NULL;
    }
    return child_item(self, parent, key);
}

/* `parent.__dict__[name]`: an item of the dict's own node, which several share. */
static PyObject *
child_in_dict(GuardTree *self, int parent, PyObject *name)
{
    PyObject *dict = intern_node(self, NODE_INSTANCE_DICT, parent, NULL, 0, NULL);
    if (dict == NULL) {
        return NULL;
    }
    int id = (int)PyLong_AsLong(dict);
    Py_DECREF(dict);
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    PyObject *node = child_item(self, id, name);
    Py_DECREF(name);
    return node;
}

static PyObject *
tree_dict_attr(GuardTree *self, PyObject *args)
{
    int parent;
    PyObject *name;
    if (!PyArg_ParseTuple(args, "iU:dict_attr", &parent, &name) || guard_check_node(self, parent) < 0) {
        return NULL;
    }
    return child_in_dict(self, parent, name);
}

static PyObject *
tree_module_item(GuardTree *self, PyObject *args)
{
    int parent;
    PyObject *table, *name;
    if (!PyArg_ParseTuple(args, "iUU:module_item", &parent, &table, &name) || guard_check_node(self, parent) < 0) {
        return NULL;
    }
    PyObject *middle = child_in_dict(self, parent, table);
    if (middle == NULL) {
        return NULL;
    }
    int id = (int)PyLong_AsLong(middle);
    Py_DECREF(middle);
    return child_item(self, id, name);
}

static PyObject *
child_by_index(GuardTree *self, PyObject *args, const char *format, int kind)
{
    int parent;
    Py_ssize_t index;
    if (!PyArg_ParseTuple(args, format, &parent, &index) || guard_check_node(self, parent) < 0) {
        return NULL;
    }
    if (index < 0) {
        return PyErr_Format(PyExc_ValueError, "GuardTree: negative index %zd", index);
    }
    return intern_node(self, kind, parent, NULL, index, NULL);
}

static PyObject *
tree_dict_key(GuardTree *self, PyObject *args)
{
    return child_by_index(self, args, "in:dict_key", NODE_DICT_KEY);
}

static PyObject *
tree_dict_value(GuardTree *self, PyObject *args)
{
    return child_by_index(self, args, "in:dict_value", NODE_DICT_VALUE);
}

static PyObject *
tree_func_closure(GuardTree *self, PyObject *args)
{
    return child_by_index(self, args, "in:func_closure", NODE_FUNC_CLOSURE);
}

static PyObject *
tree_func_closure_cell(GuardTree *self, PyObject *args)
{
    return child_by_index(self, args, "in:func_closure_cell", NODE_FUNC_CLOSURE_CELL);
}

static PyObject *
child_plain(GuardTree *self, PyObject *parent, int kind)
{
    long id = PyLong_AsLong(parent);
    if ((id == -1 && PyErr_Occurred()) || guard_check_node(self, (int)id) < 0) {
        return NULL;
    }
    return intern_node(self, kind, (int)id, NULL, 0, NULL);
}

#define PLAIN_CHILD(name, kind)                                                                                    \
    static PyObject *tree_##name(GuardTree *self, PyObject *parent) { return child_plain(self, parent, kind); }

PLAIN_CHILD(instance_dict, NODE_INSTANCE_DICT)
PLAIN_CHILD(type_of, NODE_TYPE)
PLAIN_CHILD(func_defaults, NODE_FUNC_DEFAULTS)
PLAIN_CHILD(func_kwdefaults, NODE_FUNC_KWDEFAULTS)
PLAIN_CHILD(func_code, NODE_FUNC_CODE)
PLAIN_CHILD(method_self, NODE_METHOD_SELF)
PLAIN_CHILD(method_func, NODE_METHOD_FUNC)

static PyObject *
tree_grad(GuardTree *self, PyObject *parent)
{
    long id = PyLong_AsLong(parent);
    if ((id == -1 && PyErr_Occurred()) || guard_check_node(self, (int)id) < 0) {
        return NULL;
    }
    PyObject *name = PyUnicode_InternFromString("grad");
    PyObject *node = name != NULL ? intern_node(self, NODE_ATTR, (int)id, name, 0, NULL) : NULL;
    Py_XDECREF(name);
    return node;
}

static PyObject *
tree_call(GuardTree *self, PyObject *args)
{
    int parent;
    PyObject *fn, *text = Py_None;
    if (!PyArg_ParseTuple(args, "iO|O:call", &parent, &fn, &text) || guard_check_node(self, parent) < 0) {
        return NULL;
    }
    if (!PyCallable_Check(fn)) {
        return PyErr_Format(PyExc_TypeError, "GuardTree.call: %R is not callable", fn);
    }
    return intern_node(self, NODE_CALL, parent, fn, 0, text);
}

/* ------------------------------------------------------------------ evaluation from Python */

/* Parses a sequence of node ids into a new array; NULL with an exception. */
int *
guard_parse_nodes(GuardTree *tree, PyObject *sequence, Py_ssize_t *count)
{
    PyObject *fast = PySequence_Fast(sequence, "GuardTree: expected a sequence of nodes");
    if (fast == NULL) {
        return NULL;
    }
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    int *nodes = PyMem_Malloc((n + 1) * sizeof(int));
    for (Py_ssize_t i = 0; nodes != NULL && i < n; i++) {
        nodes[i] = (int)PyLong_AsLong(PySequence_Fast_GET_ITEM(fast, i));
        if (PyErr_Occurred() || guard_check_node(tree, nodes[i]) < 0) {
            PyMem_Free(nodes);
            nodes = NULL;
        }
    }
    if (nodes == NULL && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    Py_DECREF(fast);
    *count = n;
    return nodes;
}

static PyObject *
tree_collect(GuardTree *self, PyObject *sequence)
{
    Py_ssize_t n;
    if (guard_may_change(self) < 0) {
        return NULL;
    }
    if (self->owner != NULL) {
        PyErr_SetString(PyExc_ValueError, "GuardTree.collect: the tree belongs to an entry already");
        return NULL;
    }
    int *nodes = guard_parse_nodes(self, sequence, &n);
    if (nodes == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        self->nodes[nodes[i]].slot = -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (self->nodes[nodes[i]].slot == -2) {
            PyErr_Format(PyExc_ValueError, "GuardTree.collect: node %d is given twice", nodes[i]);
            PyMem_Free(nodes);
            return NULL;
        }
        self->nodes[nodes[i]].slot = -2; /* until guard_prepare */
    }
    PyMem_Free(self->collect);
    self->collect = nodes;
    self->ncollect = (int)n;
    self->prepared = false;
    Py_RETURN_NONE;
}

/* Evaluates with explicit values; fills *slots (to be freed). Returns as guard_eval. */
static int
eval_with(GuardTree *self, PyObject *args, PyObject *kwargs, PyObject ***slots, GuardFailure *failure)
{
    static char *names[] = {"args", "globals", "builtins", "closure", NULL};
    PyObject *values, *globals = Py_None, *builtins = Py_None, *closure = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO", names, &values, &globals, &builtins, &closure)) {
        return -1;
    }
    if ((globals != Py_None && !PyDict_Check(globals)) || (builtins != Py_None && !PyDict_Check(builtins))) {
        PyErr_SetString(PyExc_TypeError, "GuardTree: globals and builtins must be dicts");
        return -1;
    }
    PyObject *fast = PySequence_Tuple(values);
    PyObject *cells = fast == NULL || closure == Py_None ? NULL : PySequence_Tuple(closure);
    guard_prepare(self);
    *slots = PyMem_Calloc(self->nslots + 1, sizeof(PyObject *));
    int holds = -1;
    if (fast != NULL && *slots != NULL && !PyErr_Occurred()) {
        GuardSource source = {((PyTupleObject *)fast)->ob_item, PyTuple_GET_SIZE(fast),
                              globals == Py_None ? NULL : globals, builtins == Py_None ? NULL : builtins, cells};
        holds = guard_eval(self, &source, *slots, failure);
    }
    Py_XDECREF(fast);
    Py_XDECREF(cells);
    return holds;
}

static void
drop_slots(GuardTree *self, PyObject **slots, int holds)
{
    for (int i = 0; holds == 1 && i < self->ncollect; i++) {
        Py_DECREF(slots[i]);
    }
    PyMem_Free(slots);
}

static PyObject *
tree_check(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    PyObject **slots = NULL;
    int holds = eval_with(self, args, kwargs, &slots, NULL);
    drop_slots(self, slots, holds);
    return holds < 0 ? NULL : PyBool_FromLong(holds);
}

static PyObject *
tree_collected(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    PyObject **slots = NULL, *result = NULL;
    int holds = eval_with(self, args, kwargs, &slots, NULL);
    if (holds == 0) {
        result = Py_NewRef(Py_None);
    }
    else if (holds == 1 && (result = PyTuple_New(self->ncollect)) != NULL) {
        for (int i = 0; i < self->ncollect; i++) {
            PyTuple_SET_ITEM(result, i, Py_NewRef(slots[i]));
        }
    }
    drop_slots(self, slots, holds);
    return result;
}

static PyObject *
tree_explain_failure(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    PyObject **slots = NULL;
    GuardFailure failure = {-1, -1, NULL};
    int holds = eval_with(self, args, kwargs, &slots, &failure);
    drop_slots(self, slots, holds);
    PyObject *text = holds < 0 ? NULL : holds == 1 ? Py_NewRef(Py_None) : guard_failure_text(self, &failure);
    Py_XDECREF(failure.value);
    return text;
}

static int
describe_node(GuardTree *tree, int first_check, int first_child, PyObject *list)
{
    for (int c = first_check; c >= 0; c = tree->checks[c].next) {
        PyObject *text = guard_check_text(tree, c);
        if (text == NULL || PyList_Append(list, text) < 0) {
            Py_XDECREF(text);
            return -1;
        }
        Py_DECREF(text);
    }
    for (int child = first_child; child >= 0; child = tree->nodes[child].next_sibling) {
        if (describe_node(tree, tree->nodes[child].first_check, tree->nodes[child].first_child, list) < 0) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
tree_describe(GuardTree *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    if (list == NULL || describe_node(self, -1, self->nodes[0].first_child, list) < 0
        || describe_node(self, self->first_final, -1, list) < 0) {
        Py_XDECREF(list);
        return NULL;
    }
    return list;
}

static int
append_sizes(PyObject *list, const Trail *trail)
{
    PyObject *sizes = trail != NULL ? trail_sizes(trail) : NULL;
    int status = trail == NULL || (sizes != NULL && PyList_Append(list, sizes) == 0) ? 0 : -1;
    Py_XDECREF(sizes);
    return status;
}

/* (words, tensors, evaluated anew) of each root that has a trail, and last of the one that several share. */
static PyObject *
tree_trails(GuardTree *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *list = PyList_New(0);
    int status = list != NULL ? 0 : -1;
    for (int i = 0; status == 0 && i < self->napart; i++) {
        status = append_sizes(list, self->nodes[self->roots[i]].course.trail);
    }
    if (status < 0 || append_sizes(list, self->shared.trail) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *
tree_path(GuardTree *self, PyObject *node)
{
    long id = PyLong_AsLong(node);
    if ((id == -1 && PyErr_Occurred()) || guard_check_node(self, (int)id) < 0) {
        return NULL;
    }
    return guard_path(self, (int)id);
}

/* ------------------------------------------------------------------ the type */

static PyObject *
tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":GuardTree", names)) {
        return NULL;
    }
    GuardTree *self = (GuardTree *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->first_final = self->last_final = -1;
    self->valid = true;
    self->interned = PyDict_New();
    if (self->interned == NULL || append_node(self, NODE_ROOT, -1) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
tree_traverse(GuardTree *self, visitproc visit, void *arg)
{
    for (int i = 0; i < self->nnodes; i++) {
        Py_VISIT(self->nodes[i].arg);
    }
    for (int i = 0; i < self->nchecks; i++) {
        Check *check = &self->checks[i];
        Py_VISIT(check->object);
        if (check->kind == CHECK_CALL || check->kind == CHECK_SUBCLASSES) {
            Py_VISIT((PyObject *)check->pointer);
        }
        if (check->tensor != NULL) {
            int status = tensor_meta_traverse(check->tensor, visit, arg);
            if (status) {
                return status;
            }
        }
    }
    Py_VISIT(self->interned);
    return 0;
}

static int
tree_clear(GuardTree *self)
{
    Node *nodes = self->nodes;
    Check *checks = self->checks;
    int nnodes = self->nnodes, nchecks = self->nchecks;
    self->valid = false;
    self->nodes = NULL;
    self->checks = NULL;
    self->nnodes = self->nchecks = self->nodes_capacity = self->checks_capacity = 0;
    if (self->death != NULL) {
        ((Death *)self->death)->tree = NULL;
        Py_CLEAR(self->death);
    }
    for (int i = 0; i < nnodes; i++) {
        Py_XDECREF(nodes[i].arg);
        Py_XDECREF(nodes[i].name);
        trail_free(nodes[i].course.trail);
    }
    trail_free(self->shared.trail);
    guard_finals_free(self);
    self->shared.trail = NULL;
    self->napart = self->nshared = 0;
    for (int i = 0; i < nchecks; i++) {
        Check *check = &checks[i];
        Py_XDECREF(check->object);
        Py_XDECREF(check->text);
        Py_XDECREF(check->reason);
        if (check->kind == CHECK_CALL || check->kind == CHECK_SUBCLASSES) {
            Py_XDECREF((PyObject *)check->pointer);
        }
        tensor_meta_free(check->tensor);
        state_meta_free(check->state);
        PyMem_Free(check->tokens);
        PyMem_Free(check->nodes);
    }
    PyMem_Free(nodes);
    PyMem_Free(checks);
    Py_CLEAR(self->interned);
    return 0;
}

static void
tree_dealloc(GuardTree *self)
{
    PyObject_GC_UnTrack(self);
    tree_clear(self);
    PyMem_Free(self->collect);
    PyMem_Free(self->roots);
    Py_TYPE(self)->tp_free(self);
}

static Py_ssize_t
tree_length(GuardTree *self)
{
    return self->nchecks;
}

#define METHOD(name, flags) {#name, (PyCFunction)(void (*)(void))tree_##name, flags, NULL}
#define KEYWORD_METHOD(name) METHOD(name, METH_VARARGS | METH_KEYWORDS)
#define CHECK_METHOD(name) {#name, (PyCFunction)(void (*)(void))guard_##name, METH_VARARGS | METH_KEYWORDS, NULL}

static PyMethodDef tree_methods[] = {
    METHOD(local, METH_VARARGS),
    METHOD(closure, METH_VARARGS),
    METHOD(closure_cell, METH_VARARGS),
    {"global_", (PyCFunction)tree_global, METH_O, NULL},
    METHOD(globals_dict, METH_NOARGS),
    METHOD(builtin, METH_O),
    METHOD(constant, METH_VARARGS),
    METHOD(weak, METH_VARARGS),
    METHOD(attr, METH_VARARGS),
    METHOD(dict_attr, METH_VARARGS),
    METHOD(instance_dict, METH_O),
    METHOD(item, METH_VARARGS),
    METHOD(module_item, METH_VARARGS),
    METHOD(dict_key, METH_VARARGS),
    METHOD(dict_value, METH_VARARGS),
    METHOD(type_of, METH_O),
    METHOD(func_closure, METH_VARARGS),
    METHOD(func_closure_cell, METH_VARARGS),
    METHOD(func_defaults, METH_O),
    METHOD(func_kwdefaults, METH_O),
    METHOD(func_code, METH_O),
    METHOD(method_self, METH_O),
    METHOD(method_func, METH_O),
    METHOD(grad, METH_O),
    METHOD(call, METH_VARARGS),
    CHECK_METHOD(check_type),
    CHECK_METHOD(check_id),
    CHECK_METHOD(check_equals),
    CHECK_METHOD(check_len),
    CHECK_METHOD(check_dict_keys),
    CHECK_METHOD(check_contains),
    CHECK_METHOD(check_no_instance_attr),
    CHECK_METHOD(check_set),
    CHECK_METHOD(check_tensor),
    CHECK_METHOD(check_lambda),
    CHECK_METHOD(check_same),
    CHECK_METHOD(check_distinct),
    CHECK_METHOD(check_together),
    CHECK_METHOD(check_no_overlap),
    CHECK_METHOD(check_shape),
    CHECK_METHOD(check_global_state),
    CHECK_METHOD(check_call),
    CHECK_METHOD(check_class_attr),
    CHECK_METHOD(check_mro),
    CHECK_METHOD(check_function),
    CHECK_METHOD(check_subclasses),
    METHOD(collect, METH_O),
    KEYWORD_METHOD(check),
    KEYWORD_METHOD(collected),
    KEYWORD_METHOD(explain_failure),
    METHOD(describe, METH_NOARGS),
    METHOD(trails, METH_NOARGS),
    METHOD(path, METH_O),
    {NULL},
};

static PyMemberDef tree_members[] = {
    {"valid", T_BOOL, offsetof(GuardTree, valid), READONLY, NULL},
    {NULL},
};

static PySequenceMethods tree_sequence = {.sq_length = (lenfunc)tree_length};

PyTypeObject GuardTree_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo_capture._native.GuardTree",
    .tp_doc = "Accessors and checks over a frame's values.",
    .tp_basicsize = sizeof(GuardTree),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = tree_new,
    .tp_dealloc = (destructor)tree_dealloc,
    .tp_traverse = (traverseproc)tree_traverse,
    .tp_clear = (inquiry)tree_clear,
    .tp_as_sequence = &tree_sequence,
    .tp_methods = tree_methods,
    .tp_members = tree_members,
};
