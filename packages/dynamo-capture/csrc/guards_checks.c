/* GuardTree's methods that add checks. */
#include "capture.h"

typedef struct {
    PyObject *text, *reason;
} Words;

static PyObject *
text_or_null(PyObject *text)
{
    return text == NULL || text == Py_None ? NULL : Py_NewRef(text);
}

/* Appends a check to the node's chain (node > 0) or to the final chain (-1); NULL with an exception. */
static Check *
append_check(GuardTree *tree, int kind, int node, Words words)
{
    if (guard_may_change(tree) < 0 || (node >= 0 && guard_check_node(tree, node) < 0)) {
        return NULL;
    }
    if (tree->nchecks == tree->checks_capacity) {
        int capacity = tree->checks_capacity ? 2 * tree->checks_capacity : 16;
        Check *checks = PyMem_Realloc(tree->checks, capacity * sizeof(Check));
        if (checks == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        tree->checks = checks;
        tree->checks_capacity = capacity;
    }
    int id = tree->nchecks++;
    Check *check = &tree->checks[id];
    memset(check, 0, sizeof(Check));
    check->kind = (uint8_t)kind;
    check->node = node;
    check->next = -1;
    check->text = text_or_null(words.text);
    check->reason = text_or_null(words.reason);
    int *first = node >= 0 ? &tree->nodes[node].first_check : &tree->first_final;
    int *last = node >= 0 ? &tree->nodes[node].last_check : &tree->last_final;
    if (*last < 0) {
        *first = id;
    }
    else {
        tree->checks[*last].next = id;
    }
    *last = id;
    tree->prepared = false;
    return check;
}

/* (node, object, *, text=None, reason=None) */
static Check *
check_with_object(GuardTree *self, PyObject *args, PyObject *kwargs, const char *format, int kind)
{
    static char *names[] = {"node", "value", "text", "reason", NULL};
    int node;
    PyObject *object;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &node, &object, &words.text, &words.reason)) {
        return NULL;
    }
    Check *check = append_check(self, kind, node, words);
    if (check != NULL) {
        check->object = Py_NewRef(object);
    }
    return check;
}

#define OBJECT_CHECK(name, kind)                                                                                   \
    PyObject *guard_##name(GuardTree *self, PyObject *args, PyObject *kwargs)                                \
    {                                                                                                              \
        if (check_with_object(self, args, kwargs, "iO|$OO:" #name, kind) == NULL) {                                \
            return NULL;                                                                                           \
        }                                                                                                          \
        Py_RETURN_NONE;                                                                                            \
    }

OBJECT_CHECK(check_type, CHECK_TYPE)
OBJECT_CHECK(check_equals, CHECK_EQUALS)
OBJECT_CHECK(check_no_instance_attr, CHECK_NO_INSTANCE_ATTR)
OBJECT_CHECK(check_lambda, CHECK_LAMBDA)
OBJECT_CHECK(check_mro, CHECK_MRO)

PyObject *
guard_check_id(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    Check *check = check_with_object(self, args, kwargs, "iO|$OO:check_id", CHECK_ID);
    if (check == NULL) {
        return NULL;
    }
    check->pointer = check->object;
    PyObject *reference = guard_watch(self, check->object);
    if (reference != NULL) {
        Py_SETREF(check->object, reference);
    }
    Py_RETURN_NONE;
}

static PyObject *
check_sequence(Check *check)
{
    if (check == NULL) {
        return NULL;
    }
    PyObject *items = PySequence_Tuple(check->object);
    bool fine = items != NULL;
    if (!fine) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        items = PyTuple_New(0); /* keeps the tree sound; the caller sees the exception */
        PyErr_Restore(type, error, traceback);
    }
    Py_SETREF(check->object, items);
    return fine ? Py_NewRef(Py_None) : NULL;
}

PyObject *
guard_check_dict_keys(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    return check_sequence(check_with_object(self, args, kwargs, "iO|$OO:check_dict_keys", CHECK_DICT_KEYS));
}

/* The elements, in the order in which the set gives them. */
PyObject *
guard_check_set(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    return check_sequence(check_with_object(self, args, kwargs, "iO|$OO:check_set", CHECK_SET));
}


PyObject *
guard_check_class_attr(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "name", "attribute", "text", "reason", NULL};
    int node;
    PyObject *name, *attribute = NULL;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iU|O$OO:check_class_attr", names, &node, &name, &attribute,
                                     &words.text, &words.reason)) {
        return NULL;
    }
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    PyObject *object = attribute != NULL ? PyTuple_Pack(2, name, attribute) : PyTuple_Pack(1, name);
    Py_DECREF(name);
    Check *check = object != NULL ? append_check(self, CHECK_CLASS_ATTR, node, words) : NULL;
    if (check == NULL) {
        Py_XDECREF(object);
        return NULL;
    }
    check->object = object;
    Py_RETURN_NONE;
}

PyObject *
guard_check_function(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "function", "text", "reason", NULL};
    int node;
    PyObject *object;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO!|$OO:check_function", names, &node, &PyFunction_Type, &object,
                                     &words.text, &words.reason)) {
        return NULL;
    }
    Check *check = append_check(self, CHECK_FUNCTION, node, words);
    if (check == NULL) {
        return NULL;
    }
    PyObject *code = ((PyFunctionObject *)object)->func_code;
    check->pointer = code;
    check->globals = ((PyFunctionObject *)object)->func_globals;
    check->object = Py_NewRef(code);
    PyObject *reference = guard_watch(self, code);
    if (reference != NULL) {
        Py_SETREF(check->object, reference);
    }
    Py_RETURN_NONE;
}

PyObject *
guard_check_len(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "n", "text", "reason", NULL};
    int node;
    Py_ssize_t n;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in|$OO:check_len", names, &node, &n, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    Check *check = append_check(self, CHECK_LEN, node, words);
    if (check == NULL) {
        return NULL;
    }
    check->number = n;
    Py_RETURN_NONE;
}

PyObject *
guard_check_contains(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", "key", "present", "text", "reason", NULL};
    int node, present = 1;
    PyObject *key;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|p$OO:check_contains", names, &node, &key, &present,
                                     &words.text, &words.reason)) {
        return NULL;
    }
    Check *check = append_check(self, CHECK_CONTAINS, node, words);
    if (check == NULL) {
        return NULL;
    }
    check->object = Py_NewRef(key);
    check->number = present;
    Py_RETURN_NONE;
}

PyObject *
guard_check_tensor(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node",          "example",        "sizes", "strides", "min_size",
                            "requires_grad", "storage_offset", "stored", "text",  "reason",  NULL};
    int node, storage_offset = 0, stored = 0;
    long long min_size = 2;
    PyObject *example, *sizes = NULL, *strides = NULL, *requires_grad = NULL;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|$OOLOppOO:check_tensor", names, &node, &example, &sizes,
                                     &strides, &min_size, &requires_grad, &storage_offset, &stored, &words.text,
                                     &words.reason)
        || guard_check_node(self, node) < 0) {
        return NULL;
    }
    TensorMeta *meta = tensor_meta_new(example, sizes, strides, min_size, requires_grad, storage_offset,
                                       stored ? STORED : NOT_STORED);
    if (meta == NULL) {
        return NULL;
    }
    Check *check = append_check(self, CHECK_TENSOR, node, words);
    if (check == NULL) {
        tensor_meta_free(meta);
        return NULL;
    }
    check->tensor = meta;
    Py_RETURN_NONE;
}

static PyObject *
add_nodes_check(GuardTree *self, int kind, PyObject *sequence, Words words)
{
    Py_ssize_t n;
    int *nodes = guard_parse_nodes(self, sequence, &n);
    if (nodes == NULL) {
        return NULL;
    }
    Check *check = append_check(self, kind, -1, words);
    if (check == NULL) {
        PyMem_Free(nodes);
        return NULL;
    }
    check->nodes = nodes;
    check->number = n;
    Py_RETURN_NONE;
}

PyObject *
guard_check_same(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"a", "b", "text", "reason", NULL};
    PyObject *a, *b;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:check_same", names, &a, &b, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    PyObject *pair = PyTuple_Pack(2, a, b);
    PyObject *result = pair != NULL ? add_nodes_check(self, CHECK_SAME, pair, words) : NULL;
    Py_XDECREF(pair);
    return result;
}

PyObject *
guard_check_distinct(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes", "text", "reason", NULL};
    PyObject *nodes;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO:check_distinct", names, &nodes, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    return add_nodes_check(self, CHECK_DISTINCT, nodes, words);
}

PyObject *
guard_check_together(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes", "fn", "text", "reason", NULL};
    PyObject *nodes, *fn;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:check_together", names, &nodes, &fn, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    PyObject *result = add_nodes_check(self, CHECK_TOGETHER, nodes, words);
    if (result != NULL) {
        self->checks[self->nchecks - 1].object = Py_NewRef(fn);
    }
    return result;
}

PyObject *
guard_check_no_overlap(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"written", "others", "text", "reason", NULL};
    PyObject *written, *others;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:check_no_overlap", names, &written, &others, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    PyObject *all = PySequence_List(written);
    Py_ssize_t leading = all != NULL ? PyList_GET_SIZE(all) : 0;
    PyObject *tail = all != NULL ? PySequence_InPlaceConcat(all, others) : NULL;
    PyObject *result = tail != NULL ? add_nodes_check(self, CHECK_NO_OVERLAP, all, words) : NULL;
    if (result != NULL) {
        self->checks[self->nchecks - 1].leading = leading;
    }
    Py_XDECREF(tail);
    Py_XDECREF(all);
    return result;
}

static const struct {
    const char *name;
    int op;
} shape_names[] = {
    {"+", SHAPE_ADD},       {"-", SHAPE_SUB},     {"*", SHAPE_MUL}, {"//", SHAPE_FLOORDIV}, {"%", SHAPE_MOD},
    {"ceildiv", SHAPE_CEILDIV}, {"min", SHAPE_MIN}, {"max", SHAPE_MAX}, {"neg", SHAPE_NEG},  {"abs", SHAPE_ABS},
    {"==", SHAPE_EQ},       {"!=", SHAPE_NE},     {"<", SHAPE_LT},  {"<=", SHAPE_LE},       {">", SHAPE_GT},
    {">=", SHAPE_GE},       {"and", SHAPE_AND},   {"or", SHAPE_OR}, {"not", SHAPE_NOT},
    {"size", SHAPE_SIZE},   {"stride", SHAPE_STRIDE}, {"offset", SHAPE_OFFSET}, {"numel", SHAPE_NUMEL},
    {"int", SHAPE_INT},
};

static int
shape_op(PyObject *name)
{
    for (size_t i = 0; PyUnicode_Check(name) && i < sizeof shape_names / sizeof *shape_names; i++) {
        if (PyUnicode_CompareWithASCIIString(name, shape_names[i].name) == 0) {
            return shape_names[i].op;
        }
    }
    PyErr_Format(PyExc_ValueError, "check_shape: unknown operator %R", name);
    return -1;
}

static int
parse_shape_token(GuardTree *tree, PyObject *item, ShapeToken *token)
{
    token->node = -1;
    token->value = 0;
    if (PyLong_Check(item)) {
        token->op = SHAPE_CONST;
        token->value = PyLong_AsLongLong(item);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (!PyTuple_Check(item)) {
        token->op = shape_op(item);
        if (token->op >= 0 && token->op <= SHAPE_INT) {
            PyErr_Format(PyExc_ValueError, "check_shape: %R needs a node: (%R, node)", item, item);
            return -1;
        }
        return token->op < 0 ? -1 : 0;
    }
    PyObject *name;
    long long dim = 0;
    if (!PyArg_ParseTuple(item, "Oi|L:check_shape", &name, &token->node, &dim)) {
        return -1;
    }
    token->op = shape_op(name);
    token->value = dim;
    if (token->op > SHAPE_INT) {
        PyErr_Format(PyExc_ValueError, "check_shape: %R is no operand", name);
        return -1;
    }
    return token->op < 0 ? -1 : guard_check_node(tree, token->node);
}

PyObject *
guard_check_shape(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", "text", "reason", NULL};
    PyObject *program;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO:check_shape", names, &program, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    PyObject *fast = PySequence_Fast(program, "check_shape: the program must be a sequence");
    if (fast == NULL) {
        return NULL;
    }
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    ShapeToken *tokens = PyMem_Malloc((n + 1) * sizeof(ShapeToken));
    int depth = 0;
    bool fine = tokens != NULL;
    for (Py_ssize_t i = 0; fine && i < n; i++) {
        fine = parse_shape_token(self, PySequence_Fast_GET_ITEM(fast, i), &tokens[i]) == 0;
        if (fine) {
            int needs = tokens[i].op <= SHAPE_INT ? 0 : tokens[i].op >= SHAPE_NEG ? 1 : 2;
            if (depth < needs || depth - needs + 1 > SHAPE_MAX_DEPTH) {
                PyErr_Format(PyExc_ValueError, "check_shape: token %zd: %s", i,
                             depth < needs ? "too few operands" : "the program is nested too deeply");
                fine = false;
            }
            depth += 1 - needs;
        }
    }
    Py_DECREF(fast);
    if (fine && depth != 1) {
        PyErr_Format(PyExc_ValueError, "check_shape: the program leaves %d values, not one", depth);
        fine = false;
    }
    Check *check = fine ? append_check(self, CHECK_SHAPE, -1, words) : NULL;
    if (check == NULL) {
        PyMem_Free(tokens);
        return NULL;
    }
    check->tokens = tokens;
    check->number = n;
    Py_RETURN_NONE;
}

PyObject *
guard_check_global_state(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"text", "reason", NULL};
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OO:check_global_state", names, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    StateMeta *state = state_meta_new();
    if (state == NULL) {
        return NULL;
    }
    Check *check = append_check(self, CHECK_GLOBAL_STATE, -1, words);
    if (check == NULL) {
        state_meta_free(state);
        return NULL;
    }
    check->state = state;
    Py_RETURN_NONE;
}

PyObject *
guard_check_call(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "value", "text", "reason", NULL};
    PyObject *fn, *value;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:check_call", names, &fn, &value, &words.text,
                                     &words.reason)) {
        return NULL;
    }
    Check *check = append_check(self, CHECK_CALL, -1, words);
    if (check == NULL) {
        return NULL;
    }
    check->pointer = Py_NewRef(fn);
    check->object = Py_NewRef(value);
    Py_RETURN_NONE;
}

PyObject *
guard_check_subclasses(GuardTree *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"token", "now", "questions", "text", "reason", NULL};
    PyObject *token, *questions;
    Py_ssize_t now;
    Words words = {NULL, NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OnO|$OO:check_subclasses", names, &token, &now, &questions,
                                     &words.text, &words.reason)) {
        return NULL;
    }
    PyObject *all = PySequence_Tuple(questions);
    bool fine = all != NULL;
    for (Py_ssize_t i = 0; fine && i < PyTuple_GET_SIZE(all); i++) {
        PyObject *question = PyTuple_GET_ITEM(all, i);
        if (!PyTuple_Check(question) || PyTuple_GET_SIZE(question) != 3) {
            PyErr_SetString(PyExc_TypeError, "check_subclasses: a question is (subclass, class, answer)");
            fine = false;
        }
    }
    Check *check = fine ? append_check(self, CHECK_SUBCLASSES, -1, words) : NULL;
    if (check == NULL) {
        Py_XDECREF(all);
        return NULL;
    }
    check->pointer = Py_NewRef(token);
    check->number = now;
    check->object = all;
    Py_RETURN_NONE;
}
