/* Recording of trails; see trail.c. */
#define Py_BUILD_CORE_MODULE 1
#include "trail.h"
#include <stddef.h>
#include <structmember.h>
#if PY_VERSION_HEX >= 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* in the header itself */
#include "internal/pycore_dict.h"
#pragma GCC diagnostic pop
#endif

typedef struct {
    GuardTree *tree;
    Trail *trail;
    PyObject *claimed; /* read just now from a dict, with a claim that compares its type whenever the dict has changed */
} Recorder;

static bool record_below(Recorder *recorder, int id, PyObject *value, bool sealed);

/* Whether there is a word at this address already; notes the address. */
static bool
seen_before(Trail *trail, uintptr_t address)
{
    Array *seen = &trail->seen;
    if (2 * (seen->count + 1) > seen->capacity) {
        int capacity = seen->capacity ? 2 * seen->capacity : 256;
        uintptr_t *items = PyMem_Calloc(capacity, sizeof(uintptr_t));
        if (items == NULL) {
            trail->sound = false;
            return true;
        }
        for (int i = 0; i < seen->capacity; i++) {
            uintptr_t old = *AT(*seen, uintptr_t, i);
            if (old != 0) {
                size_t place = old * 0x9E3779B97F4A7C15u >> 24 & (capacity - 1);
                while (items[place] != 0) {
                    place = (place + 1) & (capacity - 1);
                }
                items[place] = old;
            }
        }
        PyMem_Free(seen->items);
        seen->items = items;
        seen->capacity = capacity;
    }
    uintptr_t *items = seen->items;
    size_t place = address * 0x9E3779B97F4A7C15u >> 24 & (seen->capacity - 1);
    while (items[place] != 0 && items[place] != address) {
        place = (place + 1) & (seen->capacity - 1);
    }
    if (items[place] == address) {
        return true;
    }
    items[place] = address;
    seen->count++;
    return false;
}

static void
add_word(Recorder *recorder, const void *place, uint64_t expected, bool stamp)
{
    uintptr_t address = (uintptr_t)place;
    if (seen_before(recorder->trail, address)) {
        return;
    }
    Word *word = trail_extend(&recorder->trail->words, sizeof(Word));
    if (word == NULL) {
        recorder->trail->sound = false;
        return;
    }
    *word = (Word){address, expected};
#ifdef WATCHED
    if (!stamp) {
        Word *loose = trail_extend(&recorder->trail->loose, sizeof(Word));
        recorder->trail->sound &= loose != NULL;
        if (loose != NULL) {
            *loose = *word;
        }
    }
#endif
}

static void
add_pointer(Recorder *recorder, const void *place, const void *expected)
{
    add_word(recorder, place, (uint64_t)(uintptr_t)expected, false);
}

/* A number of 32 bits and the padding behind it, which nobody writes. */
static void
add_number(Recorder *recorder, const void *place)
{
    add_word(recorder, place, *(const uint64_t *)place, false);
}

static bool
add_rest(Recorder *recorder, int node, int check, PyObject *value)
{
    Rest *rest = trail_extend(&recorder->trail->rests, sizeof(Rest));
    if (rest == NULL) {
        return false;
    }
    *rest = (Rest){node, check, value};
    return true;
}

static bool
hold(Recorder *recorder, PyObject *object)
{
    if (PyList_Append(recorder->trail->held, object) < 0) {
        PyErr_Clear();
        return false;
    }
    return true;
}

/* The word that the object lives, so that no other one is at its address; false: it cannot be told. */
static bool
anchor(Recorder *recorder, PyObject *object)
{
    if (PyType_Check(object) && !(((PyTypeObject *)object)->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        return true;
    }
    PyObject *reference = PyType_SUPPORTS_WEAKREFS(Py_TYPE(object)) ? PyWeakref_NewRef(object, NULL) : NULL;
    if (reference == NULL) {
        PyErr_Clear();
        return false;
    }
    bool held = hold(recorder, reference);
    Py_DECREF(reference);
    if (held) {
        add_pointer(recorder, &((PyWeakReference *)reference)->wr_object, object);
    }
    return held;
}

static bool
can_change_class(PyObject *object)
{
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyModule_Check(object);
}

/* Where an instance keeps its dict; NULL: it has none, or none that can be watched. */
static PyObject **
dict_place(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        return (PyObject **)object - 3;
    }
    return type->tp_dictoffset > 0 ? (PyObject **)((char *)object + type->tp_dictoffset) : NULL;
}

/* Whether its value never changes. */
static bool
is_frozen(PyObject *value)
{
    if (PyTuple_CheckExact(value)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
            if (!is_frozen(PyTuple_GET_ITEM(value, i))) {
                return false;
            }
        }
        return true;
    }
    return value == Py_None || value == Py_Ellipsis || PyLong_CheckExact(value) || PyBool_Check(value)
           || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value)
           || PyComplex_CheckExact(value);
}

/* Whether an object at this address is the same to the guards from now on; see the head of this file. */
static bool
is_firm(Recorder *recorder, PyObject *value)
{
    if (is_frozen(value)) {
        return hold(recorder, value);
    }
    return PyDict_Check(value) || Py_IS_TYPE(value, &PyDictProxy_Type) || tensor_is(value)
           || (dict_place(value) != NULL && !PyFunction_Check(value) && !PyType_Check(value)) || anchor(recorder, value);
}

static bool
add_claim(Recorder *recorder, PyObject *dict, int node, int check, PyObject *key, PyObject *value)
{
    bool firm = value == NULL || is_firm(recorder, value);
    Claim *claim = trail_extend(&recorder->trail->claims, sizeof(Claim));
    if (claim == NULL) {
        return false;
    }
    *claim = (Claim){(uintptr_t)trail_dict_number(dict), -1, node, check, firm, dict, key, value,
                     value != NULL ? Py_TYPE(value) : NULL};
    recorder->claimed = value;
    return true;
}

/* The object's own dict, with the words that say that it is still this one; NULL: it cannot be told. */
static PyObject *
own_dict(Recorder *recorder, PyObject *object)
{
    if (PyType_Check(object)) {
        return NULL;
    }
    if (PyModule_Check(object)) {
        PyObject *dict = PyModule_GetDict(object);
        return PyDict_Check(dict) ? dict : NULL;
    }
    PyObject **place = dict_place(object);
    if (place == NULL || *place == NULL || ((uintptr_t)*place & 7) || !PyDict_Check(*place)) {
        return NULL;
    }
    if (can_change_class(object)) { /* with its class it changes where the dict is */
        add_pointer(recorder, &object->ob_type, Py_TYPE(object));
    }
    add_pointer(recorder, place, *place);
    return *place;
}

#if PY_VERSION_HEX >= 0x030D0000
/* Values that are kept in the instance itself are stored there without a word to its dict's watchers. */
static PyDictValues *
inline_values(PyObject *dict)
{
    PyDictValues *values = ((PyDictObject *)dict)->ma_values;
    return values != NULL && values->embedded ? values : NULL;
}

/* The words that the instance has the attributes that it has, in their order. */
static void
seal_inline(Recorder *recorder, PyObject *dict)
{
    PyDictValues *values = inline_values(dict);
    if (values != NULL) {
        const uint64_t *order = (const uint64_t *)&values->values[values->capacity]; /* rounded up to words */
        add_number(recorder, values);
        for (int i = 0; 8 * i < values->capacity; i++) {
            add_word(recorder, order + i, order[i], false);
        }
    }
}

/* The place of an attribute among those of all instances, or -1. */
static int
inline_index(const PyDictValues *values, PyDictKeysObject *keys, PyObject *key)
{
    for (int i = 0; DK_IS_UNICODE(keys) && i < values->capacity && i < keys->dk_nentries; i++) {
        PyObject *name = DK_UNICODE_ENTRIES(keys)[i].me_key;
        if (name == key || (name != NULL && PyUnicode_CheckExact(key) && PyUnicode_Compare(name, key) == 0)) {
            return i;
        }
    }
    return -1;
}

/* The words that an attribute of an instance has this value (NULL: that there is none), which say all there is to know
 * as long as values are kept in the instance; false: it cannot be told. */
static bool
seal_value(Recorder *recorder, int id, PyObject *dict, PyObject *key, PyObject *value)
{
    PyDictValues *values = inline_values(dict);
    PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;
    int i = inline_index(values, keys, key);
    if (i < 0 && value == NULL && DK_IS_UNICODE(keys)) { /* no instance has it: keys are only added */
        add_number(recorder, values);
        add_word(recorder, &keys->dk_nentries, (uint64_t)keys->dk_nentries, false);
        return true;
    }
    bool firm = i >= 0 && values->values[i] == value && (value == NULL || is_firm(recorder, value));
    Claim *claim = firm ? trail_extend(&recorder->trail->claims, sizeof(Claim)) : NULL;
    if (claim == NULL) {
        return false;
    }
    *claim = (Claim){(uintptr_t)&values->values[i], -1, id, -1, true, NULL, key, value,
                     value != NULL ? Py_TYPE(value) : NULL};
    recorder->claimed = NULL; /* another object may come to its address while the word stays the same */
    add_number(recorder, values);
    add_pointer(recorder, &values->values[i], value);
    return true;
}
#else
#define inline_values(dict) NULL
#define seal_inline(recorder, dict)
#define seal_value(recorder, id, dict, key, value) true
#endif

/* The words that the dict holds what it holds now. */
static bool
seal(Recorder *recorder, PyObject *dict)
{
    const uint64_t *number = trail_dict_number(dict);
    if (number == NULL) {
        return false;
    }
    add_word(recorder, number, *number, true);
    seal_inline(recorder, dict);
    return true;
}

/* The words that an item of a dict is this value, or absent (NULL); false: it cannot be told. */
static bool
record_item(Recorder *recorder, int id, PyObject *dict, PyObject *key, PyObject *value)
{
    if (inline_values(dict) != NULL) {
        return seal_value(recorder, id, dict, key, value);
    }
    return seal(recorder, dict) && add_claim(recorder, dict, id, -1, key, value);
}

/* The word that the class has the attributes that it has now, and the bases. */
static bool
seal_class(Recorder *recorder, PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030D0000
    bool versioned = type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG;
#else
    bool versioned = true;
#endif
    if (!versioned || type->tp_version_tag == 0) {
        return false;
    }
    add_number(recorder, &type->tp_version_tag);
    return true;
}

static bool
record_absent(Recorder *recorder, int id, PyObject *object, PyObject *name)
{
    if (PyType_Check(object)) {
        return guard_check_value(&recorder->tree->checks[id], object) == 1
               && (seal_class(recorder, (PyTypeObject *)object) || add_rest(recorder, -1, id, object));
    }
    PyObject *dict = own_dict(recorder, object);
    if (dict == NULL) {
        return add_rest(recorder, -1, id, object);
    }
    if (!PyUnicode_CheckExact(name) || PyDict_Contains(dict, name) != 0) {
        return false;
    }
    return record_item(recorder, -1, dict, name, NULL);
}

/* Notes what makes the check hold; false: the subtree cannot have a trail now. */
static bool
record_check(Recorder *recorder, int id, PyObject *value, bool sealed)
{
    Check *check = &recorder->tree->checks[id];
    bool dict = PyDict_Check(value);
    switch (check->kind) {
    case CHECK_TYPE:
        /* The check keeps the class. */
        if (can_change_class(value) || !(value == recorder->claimed || is_frozen(value))) {
            add_pointer(recorder, &value->ob_type, check->object);
        }
        return guard_check_value(check, value) == 1;
    case CHECK_ID:
        return value == check->pointer;
    case CHECK_EQUALS:
        if (is_frozen(value)) {
            return guard_check_value(check, value) == 1;
        }
        break;
    case CHECK_LEN:
        if (PyTuple_CheckExact(value)) {
            return guard_check_value(check, value) == 1;
        }
        /* fall through */
    case CHECK_DICT_KEYS:
    case CHECK_CONTAINS:
        if (dict && !sealed && (check->kind != CHECK_CONTAINS || PyUnicode_CheckExact(check->object))) {
            return guard_check_value(check, value) == 1 && seal(recorder, value)
                   && add_claim(recorder, value, -1, id, NULL, NULL);
        }
        break;
    case CHECK_NO_INSTANCE_ATTR:
        return record_absent(recorder, id, value, check->object);
    case CHECK_CLASS_ATTR:
        return guard_check_value(check, value) == 1
               && (seal_class(recorder, (PyTypeObject *)value) || add_rest(recorder, -1, id, value));
    case CHECK_MRO:
        add_pointer(recorder, &((PyTypeObject *)value)->tp_mro, check->object);
        return guard_check_value(check, value) == 1;
    case CHECK_FUNCTION: /* the code is kept, or its death makes the tree invalid */
        if (guard_check_value(check, value) != 1) {
            return false;
        }
        add_pointer(recorder, &((PyFunctionObject *)value)->func_code, check->pointer);
        return true;
    case CHECK_TENSOR: {
        int noted = tensor_trail_record(check->tensor, value, &recorder->trail->tensors);
        return noted > 0 || (noted == 0 && add_rest(recorder, -1, id, value));
    }
    default:
        break;
    }
    return add_rest(recorder, -1, id, value);
}

/* What is at a place that can be assigned, with the word that it is still there; NULL: it cannot be told. */
static PyObject *
record_part(Recorder *recorder, PyObject *const *place)
{
    PyObject *part = *place;
    if (part == NULL || !is_firm(recorder, part)) {
        return NULL;
    }
    add_pointer(recorder, place, part);
    return part;
}

/* The same of a function's part, which is None to programs where there is none. */
static PyObject *
record_optional(Recorder *recorder, PyObject *const *place)
{
    if (*place == NULL) {
        add_pointer(recorder, place, NULL);
        return Py_None;
    }
    return record_part(recorder, place);
}

/* An attribute that is an item of a module's dict: the class has none of this name, which would come first. */
static PyObject *
record_module_attr(Recorder *recorder, int id, PyObject *module, PyObject *name)
{
    PyObject *dict = PyModule_GetDict(module);
    if (!PyModule_CheckExact(module) || !PyDict_Check(dict) || _PyType_Lookup(&PyModule_Type, name) != NULL) {
        return NULL;
    }
    PyObject *value = PyDict_GetItemWithError(dict, name);
    PyErr_Clear();
    if (value == NULL) {
        return NULL;
    }
    add_pointer(recorder, &module->ob_type, &PyModule_Type);
    return record_item(recorder, id, dict, name, value) ? value : NULL;
}

/* Annotations that have not been asked for may be a tuple, of which a dict is made then. */
static PyObject *
record_function_attr(Recorder *recorder, PyFunctionObject *function, PyObject *name)
{
    if (PyUnicode_CompareWithASCIIString(name, "__code__") == 0) {
        return record_part(recorder, &function->func_code);
    }
    if (PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0) {
        return record_optional(recorder, &function->func_defaults);
    }
    if (PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0) {
        return record_optional(recorder, &function->func_kwdefaults);
    }
    bool annotations = PyUnicode_CompareWithASCIIString(name, "__annotations__") == 0;
    bool made = annotations && function->func_annotations != NULL && PyDict_CheckExact(function->func_annotations);
    return made ? record_part(recorder, &function->func_annotations) : NULL;
}

/* An attribute, where no code of the program is asked for it: an item of a module, a part of a function, a class's
 * name, what is in a place that `__slots__` made (its descriptor comes before what the instance's dict has). */
static PyObject *
record_attr(Recorder *recorder, int id, PyObject *object, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    if (PyModule_Check(object)) {
        return record_module_attr(recorder, id, object, name);
    }
    if (PyFunction_Check(object)) {
        return record_function_attr(recorder, (PyFunctionObject *)object, name);
    }
    if (Py_IS_TYPE(object, &PyType_Type) && PyUnicode_CompareWithASCIIString(name, "__name__") == 0) {
        bool heap = ((PyTypeObject *)object)->tp_flags & Py_TPFLAGS_HEAPTYPE;
        add_pointer(recorder, &object->ob_type, &PyType_Type);
        return heap ? record_part(recorder, &((PyHeapTypeObject *)object)->ht_name) : NULL;
    }
    if (type->tp_getattro != PyObject_GenericGetAttr || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
        return NULL;
    }
    PyObject *descriptor = _PyType_Lookup(type, name);
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
        return NULL;
    }
    const PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    if (member->type != T_OBJECT_EX || !PyType_IsSubtype(type, PyDescr_TYPE(descriptor))) {
        return NULL;
    }
    add_pointer(recorder, &object->ob_type, type);
    return seal_class(recorder, type) ? record_part(recorder, (PyObject **)((char *)object + member->offset)) : NULL;
}

/* The dict that a mapping proxy shows, where its copy, a new dict in each call, is asked for length and presence
 * alone: then a dict of a subclass answers the same (its order may be another). */
static PyObject *
record_copy(const GuardTree *tree, const Node *node, PyObject *parent)
{
    typedef struct {
        PyObject_HEAD
        PyObject *mapping;
    } Proxy; /* as in CPython's descrobject.c, in every version */
    if (node->arg != (PyObject *)&PyDict_Type || !Py_IS_TYPE(parent, &PyDictProxy_Type) || node->slot >= 0
        || node->first_child >= 0) {
        return NULL;
    }
    PyObject *mapping = ((Proxy *)parent)->mapping;
    for (int c = node->first_check; c >= 0; c = tree->checks[c].next) {
        int kind = tree->checks[c].kind;
        if (kind != CHECK_LEN && kind != CHECK_CONTAINS && !(kind == CHECK_TYPE && PyDict_CheckExact(mapping))) {
            return NULL;
        }
    }
    return PyDict_CheckExact(mapping) || PyODict_CheckExact(mapping) ? mapping : NULL;
}

/* What an accessor gives, borrowed from `parent`, which keeps it; NULL: it is read anew each time. `sealed`: the
 * parent's own word covers what it holds, and `*below` is set to the same for the value. */
static PyObject *
record_read(Recorder *recorder, const Node *node, int id, PyObject *parent, bool sealed, bool *below)
{
    *below = false;
    switch (node->kind) {
    case NODE_INSTANCE_DICT:
        if (PyType_Check(parent)) {
            if (node->slot >= 0 || node->first_check >= 0 || !seal_class(recorder, (PyTypeObject *)parent)) {
                return NULL;
            }
            PyObject *dict = guard_class_dict((PyTypeObject *)parent);
            Py_XDECREF(dict); /* the class keeps it */
            *below = true;
            return dict;
        }
        return own_dict(recorder, parent);
    case NODE_ITEM: {
        if (PyTuple_CheckExact(parent) && PyLong_CheckExact(node->arg)) {
            Py_ssize_t n = PyTuple_GET_SIZE(parent), i = node->index < 0 ? node->index + n : node->index;
            return i >= 0 && i < n ? PyTuple_GET_ITEM(parent, i) : NULL;
        }
        if (!PyDict_Check(parent) || !(PyUnicode_CheckExact(node->arg) || PyLong_CheckExact(node->arg))) {
            return NULL;
        }
        PyObject *value = PyDict_GetItemWithError(parent, node->arg);
        PyErr_Clear();
        if (value == NULL || sealed) {
            recorder->claimed = value; /* the class's number is the word */
            return value;
        }
        return record_item(recorder, id, parent, node->arg, value) ? value : NULL;
    }
    case NODE_TYPE:
        if (can_change_class(parent)) {
            add_pointer(recorder, &parent->ob_type, Py_TYPE(parent));
        }
        return anchor(recorder, (PyObject *)Py_TYPE(parent)) ? (PyObject *)Py_TYPE(parent) : NULL;
    case NODE_FUNC_CODE:
        return PyFunction_Check(parent) ? record_part(recorder, &((PyFunctionObject *)parent)->func_code) : NULL;
    case NODE_FUNC_DEFAULTS:
        return PyFunction_Check(parent) ? record_optional(recorder, &((PyFunctionObject *)parent)->func_defaults) : NULL;
    case NODE_FUNC_KWDEFAULTS:
        return PyFunction_Check(parent) ? record_optional(recorder, &((PyFunctionObject *)parent)->func_kwdefaults) : NULL;
    case NODE_FUNC_CLOSURE: {
        PyObject *cells = PyFunction_Check(parent) ? ((PyFunctionObject *)parent)->func_closure : NULL;
        bool inside = cells != NULL && node->index < PyTuple_GET_SIZE(cells);
        return inside ? record_part(recorder, &((PyCellObject *)PyTuple_GET_ITEM(cells, node->index))->ob_ref) : NULL;
    }
    case NODE_ATTR:
        return record_attr(recorder, id, parent, node->arg);
    case NODE_METHOD_SELF:
        return PyMethod_Check(parent) ? PyMethod_GET_SELF(parent) : NULL;
    case NODE_METHOD_FUNC:
        return PyMethod_Check(parent) ? PyMethod_GET_FUNCTION(parent) : NULL;
    case NODE_CALL:
        return record_copy(recorder->tree, node, parent);
    default:
        return NULL;
    }
}

static bool
record_below(Recorder *recorder, int id, PyObject *value, bool sealed)
{
    const Node *node = &recorder->tree->nodes[id];
    const int before = recorder->trail->tensors.count;
    for (int c = node->first_check; c >= 0; c = recorder->tree->checks[c].next) {
        if (!record_check(recorder, c, value, sealed)) {
            return false;
        }
    }
    TensorTrails *tensors = &recorder->trail->tensors;
    if (node->slot >= 0 && tensors->count > before) {
        tensors->items[before].slot = node->slot;
    }
    else if (node->slot >= 0) {
        Kept *kept = trail_extend(&recorder->trail->kept, sizeof(Kept));
        if (kept == NULL) {
            return false;
        }
        *kept = (Kept){node->slot, value};
    }
    for (int child = node->first_child; child >= 0; child = recorder->tree->nodes[child].next_sibling) {
        const Node *next = &recorder->tree->nodes[child];
        bool below;
        recorder->claimed = NULL;
        PyObject *read = !next->live || next->changes == TRAIL_FICKLE ? NULL
                                                     : record_read(recorder, next, child, value, sealed, &below);
        if (next->live && !(read != NULL ? record_below(recorder, child, read, below)
                                         : add_rest(recorder, child, -1, value))) {
            return false;
        }
    }
    return recorder->trail->sound;
}

static int
compare_claims(const void *a, const void *b)
{
    return ((const Claim *)a)->word - ((const Claim *)b)->word;
}

/* Finds each claim's word, by the number's address, and sorts the claims by it. */
static bool
order_claims(Trail *trail)
{
    int n = trail->claims.count;
    size_t size = 64;
    while (size < 2 * (size_t)trail->words.count) {
        size *= 2;
    }
    int *table = PyMem_Malloc(size * sizeof(int));
    if (table == NULL) {
        return false;
    }
    memset(table, -1, size * sizeof(int));
    for (int i = 0; i < trail->words.count; i++) {
        size_t place = AT(trail->words, Word, i)->address * 0x9E3779B97F4A7C15u >> 24 & (size - 1);
        while (table[place] >= 0) {
            place = (place + 1) & (size - 1);
        }
        table[place] = i;
    }
    bool found = true;
    for (int i = 0; i < n && found; i++) {
        Claim *claim = AT(trail->claims, Claim, i);
        uintptr_t address = claim->address;
        size_t place = address * 0x9E3779B97F4A7C15u >> 24 & (size - 1);
        while (table[place] >= 0 && AT(trail->words, Word, table[place])->address != address) {
            place = (place + 1) & (size - 1);
        }
        claim->word = table[place];
        found = claim->word >= 0;
    }
    PyMem_Free(table);
    if (found && n > 0) {
        qsort(trail->claims.items, n, sizeof(Claim), compare_claims);
    }
    return found;
}

static Trail *
new_trail(PyObject *root)
{
    Trail *trail = PyMem_Calloc(1, sizeof(Trail));
    if (trail == NULL) {
        return NULL;
    }
    trail->root = root;
    trail->changed = -1;
    trail->sound = true;
    trail->held = PyList_New(0);
    if (trail->held == NULL) {
        PyErr_Clear();
        trail_free(trail);
        return NULL;
    }
    return trail;
}

/* The trail if it is `complete`, without what only recording needs; else NULL, and it is freed. */
static Trail *
finished(Trail *trail, bool complete)
{
    if (!complete || !order_claims(trail)) {
        PyErr_Clear();
        trail_free(trail);
        return NULL;
    }
    tensor_trails_finish(&trail->tensors);
    PyMem_Free(trail->seen.items);
    memset(&trail->seen, 0, sizeof(Array));
    return trail;
}

/* The trail of the guards below a root whose value they have just accepted; NULL: they cannot have one. */
Trail *
trail_record(GuardTree *tree, int id, PyObject *value)
{
    Trail *trail = new_trail(value);
    Recorder recorder = {tree, trail, NULL};
    bool known = tree->nodes[id].kind == NODE_CONSTANT; /* kept by the tree */
    return trail == NULL ? NULL
                         : finished(trail, (known || anchor(&recorder, value)) && record_below(&recorder, id, value, false));
}

/* An item of the frame's globals or builtins; `value` NULL: there is none. */
static bool
record_name(Recorder *recorder, PyObject *dict, int id, PyObject *name, PyObject **value)
{
    if (dict == NULL || !PyDict_Check(dict)) {
        return false;
    }
    *value = PyDict_GetItemWithError(dict, name);
    PyErr_Clear();
    return seal(recorder, dict) && add_claim(recorder, dict, *value != NULL ? id : -1, -1, name, *value);
}

/* What a root gives in every call with these globals and builtins, and all below it; false: it cannot be told. */
static bool
record_root(Recorder *recorder, int id, const GuardSource *source)
{
    const Node *node = &recorder->tree->nodes[id];
    PyObject *value = NULL;
    if (node->changes == TRAIL_FICKLE) {
        return add_rest(recorder, id, -1, NULL);
    }
    switch (node->kind) {
    case NODE_CONSTANT:
        value = node->arg;
        break;
    case NODE_WEAK: {
        PyObject **place = &((PyWeakReference *)node->arg)->wr_object;
        value = *place != Py_None ? *place : NULL;
        add_pointer(recorder, place, value);
        break;
    }
    case NODE_GLOBAL:
        if (!record_name(recorder, source->globals, id, node->arg, &value)) {
            return false;
        }
        /* fall through */
    case NODE_BUILTIN:
        if (value == NULL && !record_name(recorder, source->builtins, id, node->arg, &value)) {
            return false;
        }
        break;
    default:
        value = source->globals;
        break;
    }
    return value != NULL && record_below(recorder, id, value, false);
}

/* Takes back what was noted of the last root. */
static void
take_back(Trail *trail, const Trail *before, Py_ssize_t held)
{
    Array *arrays[] = {&trail->words, &trail->claims, &trail->rests, &trail->kept, &trail->starts};
    const Array *counts[] = {&before->words, &before->claims, &before->rests, &before->kept, &before->starts};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        arrays[i]->count = counts[i]->count;
    }
    trail->tensors.count = before->tensors.count;
#ifdef WATCHED
    trail->loose.count = before->loose.count;
#endif
    trail->sound &= PyList_SetSlice(trail->held, held, PyList_GET_SIZE(trail->held), NULL) == 0;
    if (trail->seen.items != NULL) {
        memset(trail->seen.items, 0, trail->seen.capacity * sizeof(uintptr_t));
    }
    trail->seen.count = 0;
    for (int i = 0; i < trail->words.count; i++) {
        seen_before(trail, AT(trail->words, Word, i)->address);
    }
}

Trail *
trail_record_shared(GuardTree *tree, const int *roots, int n, const GuardSource *source)
{
    Trail *trail = new_trail(NULL);
    Recorder recorder = {tree, trail, NULL};
    if (trail == NULL) {
        return NULL;
    }
    trail->globals = source->globals;
    trail->builtins = source->builtins;
    for (int i = 0; i < n && trail->sound; i++) {
        Trail before = *trail;
        Py_ssize_t held = PyList_GET_SIZE(trail->held);
        Start *start = trail_extend(&trail->starts, sizeof(Start));
        if (start == NULL) {
            return finished(trail, false);
        }
        *start = (Start){roots[i], trail->words.count};
        if (!record_root(&recorder, roots[i], source)) {
            PyErr_Clear();
            tree->nodes[roots[i]].apart = true;
            take_back(trail, &before, held);
        }
    }
    return finished(trail, trail->sound);
}
