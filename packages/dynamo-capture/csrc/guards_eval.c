/* Evaluation of guard trees. */
#include "capture.h"

#include <stdlib.h>

/* ------------------------------------------------------------------ constants */

static bool
double_equal(double a, double b)
{
    uint64_t x, y;
    if (a != a || b != b) {
        return a != a && b != b;
    }
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y; /* -0.0 is another constant than 0.0 */
}

static bool
rich_equal(PyObject *a, PyObject *b)
{
    int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) {
        PyErr_Clear();
    }
    return equal > 0;
}

static bool
base_equal(PyTypeObject *base, PyObject *a, PyObject *b)
{
    PyObject *result = base->tp_richcompare(a, b, Py_EQ);
    bool equal = result == Py_True;
    Py_XDECREF(result);
    PyErr_Clear();
    return equal;
}

/* Same type and value; no exception is left set. */
bool
guard_const_equal(PyObject *a, PyObject *b)
{
    if (a == b) {
        return true;
    }
    if (Py_TYPE(a) != Py_TYPE(b)) {
        return false;
    }
    if (PyFloat_CheckExact(a)) {
        return double_equal(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    }
    if (PyComplex_Check(a)) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return double_equal(x.real, y.real) && double_equal(x.imag, y.imag);
    }
    if (PyTuple_Check(a) || PyList_CheckExact(a)) {
        Py_ssize_t n = PySequence_Fast_GET_SIZE(a);
        if (n != PySequence_Fast_GET_SIZE(b)) {
            return false;
        }
        for (Py_ssize_t i = 0; i < n; i++) {
            if (!guard_const_equal(PySequence_Fast_GET_ITEM(a, i), PySequence_Fast_GET_ITEM(b, i))) {
                return false;
            }
        }
        return true;
    }
    if (PySlice_Check(a)) {
        PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
        return guard_const_equal(x->start, y->start) && guard_const_equal(x->stop, y->stop)
               && guard_const_equal(x->step, y->step);
    }
    /* Of a subclass, the number or text itself: what the class says of it is asked elsewhere. */
    if (PyUnicode_Check(a)) {
        return PyUnicode_Compare(a, b) == 0;
    }
    if (PyFloat_Check(a)) {
        return double_equal(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    }
    if (PyLong_Check(a)) {
        return base_equal(&PyLong_Type, a, b);
    }
    if (PyBytes_Check(a)) {
        return base_equal(&PyBytes_Type, a, b);
    }
    return rich_equal(a, b);
}

/* ------------------------------------------------------------------ accessors */

static PyObject *
borrow(PyObject *value)
{
    return Py_XNewRef(value);
}

/* The instance's __dict__ (new reference), or NULL, with or without an exception. */
static PyObject *
instance_dict(PyObject *object)
{
    if (PyType_Check(object)) {
        return PyObject_GetAttrString(object, "__dict__"); /* a mapping proxy */
    }
    if (PyModule_Check(object)) {
        return borrow(PyModule_GetDict(object));
    }
    return PyObject_GenericGetDict(object, NULL);
}

static PyObject *
get_item(PyObject *container, PyObject *key, Py_ssize_t index)
{
    if (PyDict_Check(container)) {
        return borrow(PyDict_GetItemWithError(container, key));
    }
    if (PyTuple_Check(container) && PyLong_CheckExact(key)) {
        Py_ssize_t n = PyTuple_GET_SIZE(container), i = index < 0 ? index + n : index;
        return i >= 0 && i < n ? Py_NewRef(PyTuple_GET_ITEM(container, i)) : NULL;
    }
    if (PyList_Check(container) && PyLong_CheckExact(key)) {
        Py_ssize_t n = PyList_GET_SIZE(container), i = index < 0 ? index + n : index;
        return i >= 0 && i < n ? Py_NewRef(PyList_GET_ITEM(container, i)) : NULL;
    }
    return PyObject_GetItem(container, key);
}

bool
guard_dict_entry(PyObject *dict, Py_ssize_t place, PyObject **key, PyObject **value)
{
    return PyDict_Check(dict) && PyDict_Next(dict, &place, key, value);
}

static PyObject *
get_of_dict(PyObject *dict, Py_ssize_t place, bool of_value)
{
    PyObject *key, *value;
    return guard_dict_entry(dict, place, &key, &value) ? Py_NewRef(of_value ? value : key) : NULL;
}

static PyObject *
get_global(const GuardSource *source, PyObject *name)
{
    PyObject *value = NULL;
    if (source->globals != NULL) {
        value = PyDict_GetItemWithError(source->globals, name);
    }
    if (value == NULL && source->builtins != NULL && !PyErr_Occurred()) {
        value = PyDict_GetItemWithError(source->builtins, name);
    }
    return borrow(value);
}

/* The cell itself, or what is in it. */
static PyObject *
get_cell(PyObject *cells, Py_ssize_t index, bool contents)
{
    if (cells == NULL || !PyTuple_Check(cells) || index >= PyTuple_GET_SIZE(cells)) {
        return NULL;
    }
    PyObject *cell = PyTuple_GET_ITEM(cells, index);
    if (!PyCell_Check(cell)) {
        return NULL;
    }
    return borrow(contents ? PyCell_GET(cell) : cell);
}

static PyObject *
get_function_part(PyObject *object, int kind, Py_ssize_t index)
{
    if (!PyFunction_Check(object)) {
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)object;
    switch (kind) {
    case NODE_FUNC_CLOSURE:
    case NODE_FUNC_CLOSURE_CELL:
        return get_cell(function->func_closure, index, kind == NODE_FUNC_CLOSURE);
    case NODE_FUNC_DEFAULTS:
        return Py_NewRef(function->func_defaults != NULL ? function->func_defaults : Py_None);
    case NODE_FUNC_KWDEFAULTS:
        return Py_NewRef(function->func_kwdefaults != NULL ? function->func_kwdefaults : Py_None);
    default:
        return Py_NewRef(function->func_code);
    }
}

/* The referent (new reference), or NULL. */
PyObject *
guard_referent(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object = NULL;
    PyWeakref_GetRef(reference, &object);
    return object;
#else
    PyObject *object = PyWeakref_GET_OBJECT(reference);
    return object == Py_None ? NULL : Py_NewRef(object);
#endif
}

/* The node's value (new reference); NULL when there is none, with or without an exception. */
static PyObject *
read_node(const Node *node, PyObject *parent, const GuardSource *source)
{
    switch (node->kind) {
    case NODE_LOCAL:
        return node->index < source->nargs ? borrow(source->args[node->index]) : NULL;
    case NODE_CLOSURE:
    case NODE_CLOSURE_CELL:
        return get_cell(source->closure, node->index, node->kind == NODE_CLOSURE);
    case NODE_GLOBAL:
        return get_global(source, node->arg);
    case NODE_GLOBALS_DICT:
        return borrow(source->globals);
    case NODE_BUILTIN:
        return source->builtins != NULL ? borrow(PyDict_GetItemWithError(source->builtins, node->arg)) : NULL;
    case NODE_CONSTANT:
        return Py_NewRef(node->arg);
    case NODE_WEAK:
        return guard_referent(node->arg);
    case NODE_ATTR:
        return PyObject_GetAttr(parent, node->arg);
    case NODE_INSTANCE_DICT:
        /* Merely passed through, a class's dict needs no proxy around it. */
        return PyType_Check(parent) && node->slot < 0 && node->first_check < 0 ? guard_class_dict((PyTypeObject *)parent)
                                                                               : instance_dict(parent);
    case NODE_ITEM:
        return get_item(parent, node->arg, node->index);
    case NODE_DICT_KEY:
    case NODE_DICT_VALUE:
        return get_of_dict(parent, node->index, node->kind == NODE_DICT_VALUE);
    case NODE_TYPE:
        return Py_NewRef(Py_TYPE(parent));
    case NODE_FUNC_CLOSURE:
    case NODE_FUNC_CLOSURE_CELL:
    case NODE_FUNC_DEFAULTS:
    case NODE_FUNC_KWDEFAULTS:
    case NODE_FUNC_CODE:
        return get_function_part(parent, node->kind, node->index);
    case NODE_METHOD_SELF:
        return PyMethod_Check(parent) ? Py_NewRef(PyMethod_GET_SELF(parent)) : NULL;
    case NODE_METHOD_FUNC:
        return PyMethod_Check(parent) ? Py_NewRef(PyMethod_GET_FUNCTION(parent)) : NULL;
    case NODE_CALL:
        return PyObject_CallOneArg(node->arg, parent);
    default:
        return NULL;
    }
}

/* ------------------------------------------------------------------ checks on one node */

static bool
dict_has_keys(PyObject *dict, PyObject *keys)
{
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) {
        return false;
    }
    PyObject *key;
    Py_ssize_t position = 0, i = 0;
    while (PyDict_Next(dict, &position, &key, NULL)) {
        PyObject *expected = PyTuple_GET_ITEM(keys, i++);
        if (key == expected) {
            continue;
        }
        Py_INCREF(key);
        bool equal = guard_key_equal(key, expected);
        Py_DECREF(key);
        if (!equal) {
            return false;
        }
    }
    return true;
}

/* What is really in a container, whatever a subclass's __len__ says. */
static Py_ssize_t
real_length(PyObject *value)
{
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value);
    }
    if (PyTuple_Check(value) || PyList_Check(value)) {
        return Py_SIZE(value);
    }
    return PyAnySet_Check(value) ? PySet_GET_SIZE(value) : PyObject_Size(value);
}

/* 1, 0, or -1 with an exception */
static int
contains(PyObject *container, PyObject *key)
{
    if (PyDict_Check(container)) {
        return PyDict_Contains(container, key);
    }
    if (PyAnySet_Check(container)) {
        return PySet_Contains(container, key);
    }
    return PySequence_Contains(container, key);
}

static int
has_no_instance_attr(PyObject *object, PyObject *name)
{
    PyObject *dict = instance_dict(object);
    if (dict == NULL) {
        PyErr_Clear();
        return 1;
    }
    int found = contains(dict, name);
    Py_DECREF(dict);
    return found < 0 ? found : !found;
}

static int
lambda_holds(PyObject *fn, PyObject *value)
{
    PyObject *result = PyObject_CallOneArg(fn, value);
    if (result == NULL) {
        return -1;
    }
    int holds = PyObject_IsTrue(result);
    Py_DECREF(result);
    return holds;
}

int
guard_check_value(Check *check, PyObject *value)
{
    switch (check->kind) {
    case CHECK_TYPE:
        return (PyObject *)Py_TYPE(value) == check->object;
    case CHECK_ID:
        return value == check->pointer;
    case CHECK_EQUALS:
        return guard_const_equal(value, check->object);
    case CHECK_LEN: {
        Py_ssize_t n = real_length(value);
        return n < 0 ? -1 : n == check->number;
    }
    case CHECK_DICT_KEYS:
        return dict_has_keys(value, check->object);
    case CHECK_CONTAINS: {
        int found = contains(value, check->object);
        return found < 0 ? found : found == (check->number != 0);
    }
    case CHECK_NO_INSTANCE_ATTR:
        return has_no_instance_attr(value, check->object);
    case CHECK_SET:
        return guard_same_sequence(value, check->object);
    case CHECK_TENSOR:
        return tensor_meta_check(check->tensor, value);
    case CHECK_LAMBDA:
        return lambda_holds(check->object, value);
    case CHECK_CLASS_ATTR:
        return guard_class_attr_holds(check, value);
    case CHECK_MRO: /* a class gets another tuple when its bases, or those of a base, are assigned */
        return PyType_Check(value) && ((PyTypeObject *)value)->tp_mro == check->object;
    case CHECK_FUNCTION:
        return guard_function_is(check, value);
    default:
        return 0;
    }
}

/* ------------------------------------------------------------------ the walk */

/* After a failure with or without an exception: 0, or -1 if it must propagate. */
int
guard_settle(void)
{
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_Clear();
    }
    return 0;
}

void
guard_note_failure(GuardFailure *failure, int node, int check, PyObject *value)
{
    if (failure != NULL) {
        failure->node = node;
        failure->check = check;
        failure->value = Py_XNewRef(value);
    }
}

int
guard_settled(int holds)
{
    return holds == 1 ? 1 : guard_settle();
}

/* Takes the reference to the node's value. */
static int
eval_value(GuardTree *tree, int id, PyObject *value, const GuardSource *source, PyObject **slots,
           GuardFailure *failure)
{
    const Node *node = &tree->nodes[id];
    int holds = 1;
    for (int c = node->first_check; c >= 0; c = tree->checks[c].next) {
        holds = guard_check_value(&tree->checks[c], value);
        if (holds != 1) {
            guard_note_failure(failure, id, c, value);
            holds = guard_settle();
            goto done;
        }
    }
    for (int child = node->first_child; child >= 0; child = tree->nodes[child].next_sibling) {
        if (tree->nodes[child].live && (holds = guard_eval_node(tree, child, value, source, slots, failure)) != 1) {
            goto done;
        }
    }
    if (node->slot >= 0) {
        slots[node->slot] = value; /* keeps the reference */
        return 1;
    }
done:
    Py_DECREF(value);
    return holds;
}

int
guard_eval_node(GuardTree *tree, int id, PyObject *parent, const GuardSource *source, PyObject **slots,
                GuardFailure *failure)
{
    PyObject *value = read_node(&tree->nodes[id], parent, source);
    if (value == NULL) {
        guard_note_failure(failure, id, -1, NULL);
        return guard_settle();
    }
    return eval_value(tree, id, value, source, slots, failure);
}

#define TRAIL_LONGEST_WAIT 10 /* a power of two: evaluations between trails that are of no use */
#define TRAIL_STREAK 64       /* uses after which earlier misses are forgotten */

/* By the trail, or TRAIL_UNKNOWN, after which there is none if no evaluation around this one is on it; then `blamed`
 * is the root that spoilt a shared one. */
static int
follow(GuardTree *tree, Course *course, PyObject *value, const GuardSource *source, PyObject **slots, int *blamed)
{
    if (course->trail == NULL) {
        return TRAIL_UNKNOWN;
    }
    int holds = trail_holds(tree, course->trail, value, source, slots);
    if (holds != TRAIL_UNKNOWN) {
        course->streak += course->streak < TRAIL_STREAK;
        course->misses = course->streak == TRAIL_STREAK ? 0 : course->misses;
        return guard_settled(holds);
    }
    if (tree->busy == 1) {
        *blamed = trail_blamed(course->trail);
        trail_free(course->trail);
        course->trail = NULL;
        course->streak = 0;
        course->misses += course->misses < TRAIL_LONGEST_WAIT;
        course->wait = 1 << course->misses;
    }
    return TRAIL_UNKNOWN;
}

/* After an evaluation that held: whether a trail is to be recorded. */
static bool
wants_trail(Course *course)
{
    if (course->wait > 0) {
        course->wait--;
        return false;
    }
    return course->trail == NULL;
}

/* A root: by its trail if what it rests on is unchanged, else by evaluation, which leaves a new trail. */
static int
eval_root(GuardTree *tree, int id, const GuardSource *source, PyObject **slots)
{
    Node *node = &tree->nodes[id];
    if (node->first_child < 0) {
        return guard_eval_node(tree, id, NULL, source, slots, NULL);
    }
    PyObject *value = read_node(node, NULL, source);
    if (value == NULL) {
        return guard_settle();
    }
    int blamed, holds = follow(tree, &node->course, value, source, slots, &blamed);
    if (holds == TRAIL_UNKNOWN) {
        holds = eval_value(tree, id, Py_NewRef(value), source, slots, NULL);
        if (holds == 1 && wants_trail(&node->course)) {
            node->course.trail = trail_record(tree, id, value);
            node->course.wait = node->course.trail == NULL ? 1 << TRAIL_LONGEST_WAIT : 0;
        }
    }
    Py_DECREF(value);
    return holds;
}

static bool
may_share(const Node *node)
{
    switch (node->kind) {
    case NODE_CONSTANT:
    case NODE_WEAK:
    case NODE_GLOBAL:
    case NODE_GLOBALS_DICT:
    case NODE_BUILTIN:
        return !node->apart;
    default:
        return false;
    }
}

/* Sorts the live roots into those that are followed alone and those that share a trail. */
static void
split_roots(GuardTree *tree)
{
    int napart = 0, nshared = 0;
    for (int child = tree->nodes[0].first_child; child >= 0; child = tree->nodes[child].next_sibling) {
        const Node *node = &tree->nodes[child];
        napart += node->live && !may_share(node);
        nshared += node->live && may_share(node);
    }
    tree->napart = napart;
    tree->nshared = nshared;
    int *apart = tree->roots, *shared = tree->roots + napart;
    for (int child = tree->nodes[0].first_child; child >= 0; child = tree->nodes[child].next_sibling) {
        const Node *node = &tree->nodes[child];
        if (node->live) {
            *(may_share(node) ? shared++ : apart++) = child;
        }
    }
}

#define SHARED_BLAME 2 /* how often a root may spoil the trail that it shares */

/* The roots that are the same in every call, by one trail. One that keeps changing is set apart. */
static int
eval_shared(GuardTree *tree, const GuardSource *source, PyObject **slots)
{
    Course *course = &tree->shared;
    int n = tree->nshared, blamed = -1;
    if (n == 0) {
        return 1;
    }
    int holds = follow(tree, course, NULL, source, slots, &blamed);
    if (holds != TRAIL_UNKNOWN) {
        return holds;
    }
    holds = 1;
    for (int i = 0; i < n && holds == 1; i++) {
        holds = guard_eval_node(tree, tree->roots[tree->napart + i], NULL, source, slots, NULL);
    }
    if (tree->busy != 1) {
        return holds;
    }
    bool again = blamed >= 0;
    if (again) {
        Node *node = &tree->nodes[blamed];
        node->apart |= ++node->blamed == SHARED_BLAME;
        course->wait = 0; /* as no root is to blame for long */
    }
    if (again && tree->nodes[blamed].apart) {
        split_roots(tree);
    }
    else if (holds == 1 && wants_trail(course)) {
        course->trail = trail_record_shared(tree, tree->roots + tree->napart, n, source);
        course->wait = course->trail == NULL ? 1 << TRAIL_LONGEST_WAIT : 0;
        split_roots(tree);
    }
    return holds;
}

int
guard_eval(GuardTree *tree, const GuardSource *source, PyObject **slots, GuardFailure *failure)
{
    guard_prepare(tree);
    if (!tree->valid) {
        guard_note_failure(failure, -1, -1, NULL);
        return 0;
    }
    if (tree->nslots > 0) {
        memset(slots, 0, tree->nslots * sizeof(PyObject *));
    }
    int holds = 1;
    tree->busy++;
    for (int i = 0; holds == 1 && i < tree->napart; i++) {
        holds = failure == NULL ? eval_root(tree, tree->roots[i], source, slots)
                                : guard_eval_node(tree, tree->roots[i], NULL, source, slots, failure);
    }
    if (holds == 1 && failure == NULL) {
        holds = eval_shared(tree, source, slots);
    }
    for (int i = tree->napart; holds == 1 && failure != NULL && i < tree->napart + tree->nshared; i++) {
        holds = guard_eval_node(tree, tree->roots[i], NULL, source, slots, failure);
    }
    holds = holds == 1 ? guard_finals_hold(tree, slots, failure) : holds;
    tree->busy--;
    /* Guards that run Python code may kill what the tree holds weakly. */
    if (holds == 1 && !tree->valid) {
        guard_note_failure(failure, -1, -1, NULL);
        holds = 0;
    }
    for (int i = holds == 1 ? tree->ncollect : 0; i < tree->nslots; i++) {
        Py_XDECREF(slots[i]);
    }
    return holds;
}

/* Decides which nodes need reading at all, and where values are kept. */
void
guard_prepare(GuardTree *tree)
{
    if (tree->prepared) {
        return;
    }
    trail_free(tree->shared.trail);
    tree->shared.trail = NULL;
    for (int i = 0; i < tree->nnodes; i++) {
        trail_free(tree->nodes[i].course.trail);
        tree->nodes[i].course.trail = NULL;
        tree->nodes[i].slot = -1;
        tree->nodes[i].live = tree->nodes[i].first_check >= 0;
    }
    tree->nslots = 0;
    for (int i = 0; i < tree->ncollect; i++) {
        tree->nodes[tree->collect[i]].slot = tree->nslots++;
        tree->nodes[tree->collect[i]].live = true;
    }
    for (int c = tree->first_final; c >= 0; c = tree->checks[c].next) {
        const Check *check = &tree->checks[c];
        bool shape = check->kind == CHECK_SHAPE;
        bool on_nodes = check->nodes != NULL;
        for (Py_ssize_t i = 0; i < check->number && (shape || on_nodes); i++) {
            int id = shape ? check->tokens[i].node : check->nodes[i];
            if (id >= 0) {
                Node *node = &tree->nodes[id];
                node->live = true;
                if (node->slot < 0) {
                    node->slot = tree->nslots++;
                }
            }
        }
    }
    /* A parent has a smaller id than its children. */
    for (int i = tree->nnodes - 1; i > 0; i--) {
        if (tree->nodes[i].live) {
            tree->nodes[tree->nodes[i].parent].live = true;
        }
    }
    split_roots(tree);
    guard_finals_prepare(tree);
    tree->prepared = true;
}
