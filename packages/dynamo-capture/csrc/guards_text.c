/* Guards as text: node paths, checks, failures. */
#include "capture.h"

/* Whether repr(value) runs no code of the program's. */
static bool
shows_itself(PyObject *value, int depth)
{
    PyTypeObject *type = Py_TYPE(value);
    if (PyType_Check(value)) {
        return type == &PyType_Type;
    }
    if (PyFunction_Check(value) || PyModule_CheckExact(value)) {
        return true;
    }
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
        bool plain = depth < 3;
        for (Py_ssize_t i = 0; plain && i < PySequence_Fast_GET_SIZE(value); i++) {
            plain = shows_itself(PySequence_Fast_GET_ITEM(value, i), depth + 1);
        }
        return plain;
    }
    if (PyDict_CheckExact(value)) {
        PyObject *key, *item;
        Py_ssize_t position = 0;
        bool plain = depth < 3;
        while (plain && PyDict_Next(value, &position, &key, &item)) {
            plain = shows_itself(key, depth + 1) && shows_itself(item, depth + 1);
        }
        return plain;
    }
    if (PySlice_Check(value)) {
        PySliceObject *slice = (PySliceObject *)value;
        return depth < 3 && shows_itself(slice->start, depth + 1) && shows_itself(slice->stop, depth + 1)
               && shows_itself(slice->step, depth + 1);
    }
    /* A C type whose instances refer to no others. */
    return !(type->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_HAVE_GC));
}

/* A key of a dict: a tensor's own text would be its numbers. */
static PyObject *
key_text(PyObject *key)
{
    return shows_itself(key, 0) ? PyObject_Repr(key) : PyUnicode_FromFormat("<%s>", Py_TYPE(key)->tp_name);
}

static PyObject *
root_path(const Node *node)
{
    switch (node->kind) {
    case NODE_LOCAL:
        return node->name != NULL ? PyUnicode_FromFormat("L[%R]", node->name)
                                  : PyUnicode_FromFormat("L[%zd]", node->index);
    case NODE_CLOSURE:
        return node->name != NULL ? PyUnicode_FromFormat("C[%R]", node->name)
                                  : PyUnicode_FromFormat("C[%zd]", node->index);
    case NODE_CLOSURE_CELL:
        return PyUnicode_FromFormat("closure[%zd]", node->index);
    case NODE_GLOBAL:
        return PyUnicode_FromFormat("G[%R]", node->arg);
    case NODE_GLOBALS_DICT:
        return PyUnicode_FromString("G");
    case NODE_BUILTIN:
        return PyUnicode_FromFormat("B[%R]", node->arg);
    case NODE_WEAK:
        return node->name != NULL ? Py_NewRef(node->name) : PyUnicode_FromString("<object>");
    case NODE_CONSTANT:
        return node->name != NULL ? Py_NewRef(node->name)
                                  : PyUnicode_FromFormat("<%s object>", Py_TYPE(node->arg)->tp_name);
    default:
        return PyUnicode_FromString("<frame>");
    }
}

/* A new reference, or NULL with an exception. */
PyObject *
guard_path(GuardTree *tree, int id)
{
    const Node *node = &tree->nodes[id];
    if (node->parent <= 0) {
        return root_path(node);
    }
    PyObject *parent = guard_path(tree, node->parent), *path = NULL, *key;
    if (parent == NULL) {
        return NULL;
    }
    switch (node->kind) {
    case NODE_ATTR:
        path = PyUnicode_FromFormat("%U.%U", parent, node->arg);
        break;
    case NODE_INSTANCE_DICT:
        path = PyUnicode_FromFormat("%U.__dict__", parent);
        break;
    case NODE_ITEM:
        key = key_text(node->arg);
        path = key != NULL ? PyUnicode_FromFormat("%U[%U]", parent, key) : NULL;
        Py_XDECREF(key);
        break;
    case NODE_DICT_KEY:
        path = PyUnicode_FromFormat("list(%U)[%zd]", parent, node->index);
        break;
    case NODE_DICT_VALUE:
        path = PyUnicode_FromFormat("list(%U.values())[%zd]", parent, node->index);
        break;
    case NODE_TYPE:
        path = PyUnicode_FromFormat("type(%U)", parent);
        break;
    case NODE_FUNC_CLOSURE:
        path = PyUnicode_FromFormat("%U.__closure__[%zd].cell_contents", parent, node->index);
        break;
    case NODE_FUNC_CLOSURE_CELL:
        path = PyUnicode_FromFormat("%U.__closure__[%zd]", parent, node->index);
        break;
    case NODE_FUNC_DEFAULTS:
        path = PyUnicode_FromFormat("%U.__defaults__", parent);
        break;
    case NODE_FUNC_KWDEFAULTS:
        path = PyUnicode_FromFormat("%U.__kwdefaults__", parent);
        break;
    case NODE_FUNC_CODE:
        path = PyUnicode_FromFormat("%U.__code__", parent);
        break;
    case NODE_METHOD_SELF:
        path = PyUnicode_FromFormat("%U.__self__", parent);
        break;
    case NODE_METHOD_FUNC:
        path = PyUnicode_FromFormat("%U.__func__", parent);
        break;
    default:
        path = node->name != NULL ? PyUnicode_FromFormat("%U(%U)", node->name, parent)
                                  : PyUnicode_FromFormat("%R(%U)", node->arg, parent);
    }
    Py_DECREF(parent);
    return path;
}

static const char *const shape_operators[] = {
    [SHAPE_ADD] = "+", [SHAPE_SUB] = "-", [SHAPE_MUL] = "*", [SHAPE_FLOORDIV] = "//", [SHAPE_MOD] = "%",
    [SHAPE_EQ] = "==", [SHAPE_NE] = "!=", [SHAPE_LT] = "<", [SHAPE_LE] = "<=", [SHAPE_GT] = ">",
    [SHAPE_GE] = ">=", [SHAPE_AND] = "and", [SHAPE_OR] = "or", [SHAPE_CEILDIV] = "ceildiv",
    [SHAPE_MIN] = "min", [SHAPE_MAX] = "max", [SHAPE_NEG] = "-", [SHAPE_ABS] = "abs", [SHAPE_NOT] = "not",
};

static PyObject *
shape_operand_text(GuardTree *tree, const ShapeToken *token)
{
    if (token->op == SHAPE_CONST) {
        return PyUnicode_FromFormat("%lld", (long long)token->value);
    }
    PyObject *path = guard_path(tree, token->node), *text = NULL;
    if (path == NULL) {
        return NULL;
    }
    switch (token->op) {
    case SHAPE_SIZE:
        text = PyUnicode_FromFormat("%U.size(%lld)", path, (long long)token->value);
        break;
    case SHAPE_STRIDE:
        text = PyUnicode_FromFormat("%U.stride(%lld)", path, (long long)token->value);
        break;
    case SHAPE_OFFSET:
        text = PyUnicode_FromFormat("%U.storage_offset()", path);
        break;
    case SHAPE_NUMEL:
        text = PyUnicode_FromFormat("%U.numel()", path);
        break;
    default:
        text = Py_NewRef(path);
    }
    Py_DECREF(path);
    return text;
}

/* Infix, fully parenthesised. */
static PyObject *
shape_text(GuardTree *tree, const Check *check)
{
    PyObject *stack[SHAPE_MAX_DEPTH];
    int depth = 0;
    for (Py_ssize_t i = 0; i < check->number; i++) {
        const ShapeToken *token = &check->tokens[i];
        PyObject *text;
        if (token->op <= SHAPE_INT) {
            text = shape_operand_text(tree, token);
        }
        else if (token->op >= SHAPE_NEG) {
            PyObject *a = stack[--depth];
            text = PyUnicode_FromFormat("%s(%U)", shape_operators[token->op], a);
            Py_DECREF(a);
        }
        else {
            PyObject *b = stack[--depth], *a = stack[--depth];
            bool call = token->op == SHAPE_CEILDIV || token->op == SHAPE_MIN || token->op == SHAPE_MAX;
            text = call ? PyUnicode_FromFormat("%s(%U, %U)", shape_operators[token->op], a, b)
                        : PyUnicode_FromFormat("(%U %s %U)", a, shape_operators[token->op], b);
            Py_DECREF(a);
            Py_DECREF(b);
        }
        if (text == NULL) {
            while (depth > 0) {
                Py_DECREF(stack[--depth]);
            }
            return NULL;
        }
        stack[depth++] = text;
    }
    return stack[0];
}

static PyObject *
node_paths(GuardTree *tree, const Check *check, const char *separator)
{
    PyObject *list = PyList_New(0), *glue = PyUnicode_FromString(separator), *text = NULL;
    for (Py_ssize_t i = 0; list != NULL && i < check->number; i++) {
        PyObject *path = guard_path(tree, check->nodes[i]);
        if (path == NULL || PyList_Append(list, path) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(path);
    }
    if (list != NULL && glue != NULL) {
        text = PyUnicode_Join(glue, list);
    }
    Py_XDECREF(list);
    Py_XDECREF(glue);
    return text;
}

static PyObject *
final_check_text(GuardTree *tree, const Check *check)
{
    PyObject *inner, *text;
    switch (check->kind) {
    case CHECK_SHAPE:
        return shape_text(tree, check);
    case CHECK_SAME:
        return node_paths(tree, check, " is ");
    case CHECK_DISTINCT:
        inner = node_paths(tree, check, ", ");
        text = inner != NULL ? PyUnicode_FromFormat("distinct(%U)", inner) : NULL;
        Py_XDECREF(inner);
        return text;
    case CHECK_TOGETHER:
        inner = node_paths(tree, check, ", ");
        text = inner != NULL ? PyUnicode_FromFormat("%R(%U)", check->object, inner) : NULL;
        Py_XDECREF(inner);
        return text;
    case CHECK_NO_OVERLAP:
        inner = node_paths(tree, check, ", ");
        text = inner != NULL ? PyUnicode_FromFormat("the first %zd share no memory with the others: %U",
                                                    check->leading, inner)
                             : NULL;
        Py_XDECREF(inner);
        return text;
    case CHECK_GLOBAL_STATE:
        return PyUnicode_FromString("the global torch state is unchanged");
    case CHECK_SUBCLASSES:
        return PyUnicode_FromFormat("issubclass(...) answers as before (%zd questions)", PyTuple_GET_SIZE(check->object));
    default:
        return PyUnicode_FromFormat("%R() == %R", check->pointer, check->object);
    }
}

static PyObject *
id_text(PyObject *path, const Check *check)
{
    PyObject *object = PyWeakref_Check(check->object) ? guard_referent(check->object) : Py_NewRef(check->object);
    PyObject *text;
    if (object == NULL) {
        PyErr_Clear();
        return PyUnicode_FromFormat("%U is <dead object>", path);
    }
    bool named = PyType_Check(object) || PyFunction_Check(object) || PyModule_Check(object);
    if (named || object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyFloat_CheckExact(object)
        || PyUnicode_CheckExact(object)) {
        text = PyUnicode_FromFormat("%U is %R", path, object);
    }
    else {
        text = PyUnicode_FromFormat("%U is <%s object at %p>", path, Py_TYPE(object)->tp_name, check->pointer);
    }
    Py_DECREF(object);
    return text;
}

/* A new reference, or NULL with an exception. */
PyObject *
guard_check_text(GuardTree *tree, int id)
{
    const Check *check = &tree->checks[id];
    if (check->text != NULL) {
        return Py_NewRef(check->text);
    }
    if (check->node < 0) {
        return final_check_text(tree, check);
    }
    PyObject *path = guard_path(tree, check->node), *text = NULL, *inner;
    if (path == NULL) {
        return NULL;
    }
    switch (check->kind) {
    case CHECK_TYPE:
        text = PyUnicode_FromFormat("type(%U) is %R", path, check->object);
        break;
    case CHECK_ID:
        text = id_text(path, check);
        break;
    case CHECK_EQUALS:
        text = PyUnicode_FromFormat("%U == %R", path, check->object);
        break;
    case CHECK_LEN:
        text = PyUnicode_FromFormat("len(%U) == %zd", path, check->number);
        break;
    case CHECK_DICT_KEYS:
        text = PyUnicode_FromFormat("tuple(%U) == %R", path, check->object);
        break;
    case CHECK_CONTAINS:
        inner = key_text(check->object);
        text = inner != NULL ? PyUnicode_FromFormat("%U %s %U", inner, check->number ? "in" : "not in", path) : NULL;
        Py_XDECREF(inner);
        break;
    case CHECK_NO_INSTANCE_ATTR:
        text = PyUnicode_FromFormat("%R not in %U.__dict__", check->object, path);
        break;
    case CHECK_SET:
        text = PyUnicode_FromFormat("tuple(%U) == %R", path, check->object);
        break;
    case CHECK_CLASS_ATTR:
        inner = PyTuple_GET_ITEM(check->object, 0);
        text = PyTuple_GET_SIZE(check->object) > 1
                   ? PyUnicode_FromFormat("%U.__dict__[%R] is the same", path, inner)
                   : PyUnicode_FromFormat("%R not in %U.__dict__", inner, path);
        break;
    case CHECK_MRO:
        text = PyUnicode_FromFormat("%U.__mro__ is the same", path);
        break;
    case CHECK_FUNCTION:
        text = PyUnicode_FromFormat("%U has the same code and globals", path);
        break;
    case CHECK_TENSOR:
        inner = tensor_meta_text(check->tensor);
        text = inner != NULL ? PyUnicode_FromFormat("%U matches %U", path, inner) : NULL;
        Py_XDECREF(inner);
        break;
    default:
        text = PyUnicode_FromFormat("%R(%U)", check->object, path);
    }
    Py_DECREF(path);
    return text;
}

/* At most 200 characters of a text, whose reference is taken. */
static PyObject *
cut_off(PyObject *text)
{
    if (text != NULL && PyUnicode_GET_LENGTH(text) > 200) {
        PyObject *start = PyUnicode_Substring(text, 0, 200);
        Py_XSETREF(text, start != NULL ? PyUnicode_FromFormat("%U...", start) : NULL);
        Py_XDECREF(start);
    }
    return text;
}

static PyObject *
found_text(const Check *check, PyObject *value)
{
    if (check->kind == CHECK_TYPE) {
        return PyUnicode_FromFormat("a %s", Py_TYPE(value)->tp_name);
    }
    if (check->kind == CHECK_LEN) {
        return PyUnicode_FromFormat("length %zd", PyObject_Size(value));
    }
    if (check->kind == CHECK_DICT_KEYS && PyDict_CheckExact(value)) {
        PyObject *keys = PySequence_Tuple(value);
        if (keys != NULL && shows_itself(keys, 0)) {
            PyObject *shown = PyObject_Repr(keys);
            Py_DECREF(keys);
            return cut_off(shown);
        }
        PyErr_Clear();
        Py_XDECREF(keys);
    }
    PyObject *text = tensor_describe(value);
    if (text == NULL) {
        text = shows_itself(value, 0) ? PyObject_Repr(value) : PyUnicode_FromFormat("a %s", Py_TYPE(value)->tp_name);
        PyErr_Clear();
    }
    return cut_off(text);
}

static PyObject *
append_steal(PyObject *text, PyObject *more, const char *format)
{
    PyErr_Clear();
    if (text != NULL && more != NULL) {
        PyObject *joined = PyUnicode_FromFormat(format, text, more);
        Py_SETREF(text, joined);
    }
    Py_XDECREF(more);
    return text;
}

/* "x: size [2], now [3]" in place of "x matches ... (found ...)", for a tensor where a tensor is wanted. */
static PyObject *
tensor_failure_text(GuardTree *tree, const Check *check, PyObject *value)
{
    PyObject *difference = check->text == NULL ? tensor_difference(check->tensor, value) : NULL;
    PyObject *path = difference != NULL ? guard_path(tree, check->node) : NULL;
    PyObject *text = path != NULL ? PyUnicode_FromFormat("%U: %U", path, difference) : NULL;
    Py_XDECREF(difference);
    Py_XDECREF(path);
    return text;
}

/* Which guard failed, its text, the value found, the reason. */
PyObject *
guard_failure_text(GuardTree *tree, const GuardFailure *failure)
{
    if (failure->check < 0) {
        if (failure->node < 0) {
            return PyUnicode_FromString("an object the guards hold weakly has died");
        }
        PyObject *path = guard_path(tree, failure->node);
        PyObject *text = path != NULL ? PyUnicode_FromFormat("%U: no such value", path) : NULL;
        Py_XDECREF(path);
        return text;
    }
    const Check *check = &tree->checks[failure->check];
    PyObject *text = check->kind == CHECK_TENSOR && failure->value != NULL
                         ? tensor_failure_text(tree, check, failure->value) : NULL;
    bool told = text != NULL;
    if (!told) {
        text = guard_check_text(tree, failure->check);
    }
    if (check->kind == CHECK_GLOBAL_STATE) {
        text = append_steal(text, state_meta_difference(check->state), "%U (changed: %U)");
    }
    if (failure->value != NULL && !told) {
        text = append_steal(text, found_text(check, failure->value), "%U (found %U)");
    }
    if (check->reason != NULL) {
        text = append_steal(text, Py_NewRef(check->reason), "%U [%U]");
    }
    return text;
}
