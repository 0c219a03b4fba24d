/* Trails: what a subtree of guards rested on when they held last, as words of memory that have not changed.
 *
 * Nearly all that a program's guards ask of modules, classes and functions is settled by machine words: an object's
 * type, where its `__dict__` is, a number that changes whenever a dict or a class does. When the guards below a root
 * have held, `trail_record` walks them once more without running Python code and notes those words, top down; the
 * next evaluation compares the words in a row (`trail_holds`) and need not look anything up. What words cannot settle
 * (attributes read through descriptors, items of lists, the program's own predicates) is evaluated as ever, after
 * the words. A trail never says that guards fail: where a word is another, they are evaluated.
 *
 * Every address is valid when it is read, because the words before it have been found unchanged: the root is known by
 * a weak reference, and a dict whose number is the same holds the same values. A dict that has changed may give the
 * same addresses again (`still_claimed`): then each value must be the same object and not another one at its address.
 * It is (`is_firm`) where the trail keeps it, which it does with constants; where a word says that a weak reference to
 * it lives; and where it matters only by what its own words say, which is so of dicts, tensors and instances (a check
 * of their type leaves the word that they have it).
 */
#define Py_BUILD_CORE_MODULE 1
#include "capture.h"
#include <stddef.h>
#include <structmember.h>
#if PY_VERSION_HEX >= 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* in the header itself */
#include "internal/pycore_dict.h"
#pragma GCC diagnostic pop
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define WATCHED /* dicts by watchers; else by their versions */
#endif

#define HALF 1 /* in an address: of a word of 32 bits */

typedef struct {
    uintptr_t address;
    uint64_t expected;
} Word;

/* What was read from a dict whose number a word has: looked up again when the dict changes. Without a dict, a value
 * that a word itself has: counted when it is another. */
typedef struct {
    uintptr_t address;   /* of the word */
    int word;
    int node;            /* whose value it is; -1: a check's */
    int check;           /* a check on the dict; -1: none */
    bool firm;           /* the same address is the same value, see above */
    PyObject *dict, *key, *value; /* all borrowed: `key` from the tree, `value` NULL where there is none */
} Claim;

typedef struct {
    int node, check;     /* one of them is -1: a node to be read from `value`, or a check on it */
    PyObject *value;     /* borrowed */
} Rest;

typedef struct {
    int slot;
    PyObject *value;     /* borrowed */
} Kept;

typedef struct {
    void *items;
    int count, capacity;
} Array;

struct Trail {
    PyObject *root;      /* borrowed */
    Array words, claims, tensors, rests, kept;
#ifdef WATCHED
    Array loose;         /* those of the words that are no stamps */
    uint64_t last;       /* the last event when all of them were right */
#endif
    PyObject *held;      /* list of weak references, whose referents the words name, and of constants */
    Array seen;          /* while it is recorded: addresses that have a word, open-addressed */
    bool sound;
};

#define AT(array, type, i) (&((type *)(array).items)[i])

static void *
extend(Array *array, size_t size)
{
    if (array->count == array->capacity) {
        int capacity = array->capacity ? 2 * array->capacity : 16;
        void *items = PyMem_Realloc(array->items, capacity * size);
        if (items == NULL) {
            return NULL;
        }
        array->items = items;
        array->capacity = capacity;
    }
    return (char *)array->items + size * array->count++;
}

void
trail_free(Trail *trail)
{
    if (trail == NULL) {
        return;
    }
    Array *arrays[] = {&trail->words, &trail->claims, &trail->tensors, &trail->rests, &trail->kept, &trail->seen};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        PyMem_Free(arrays[i]->items);
    }
#ifdef WATCHED
    PyMem_Free(trail->loose.items);
#endif
    Py_XDECREF(trail->held);
    PyMem_Free(trail);
}

/* ------------------------------------------------------------------ numbers of dicts and classes */

#ifdef WATCHED
/* From 3.12 on dicts have watchers (and from 3.13 on an attribute's store leaves the version alone). A watched dict
 * has a stamp, a number that every event changes and that no stamp has twice; stamps are used again for other dicts
 * but never freed, so that an old trail may still look. */
typedef struct {
    PyObject *dict;
    uint64_t *stamp;
} Watched;

static struct {
    int watcher;
    Watched *table; /* open-addressed; a removed entry keeps its stamp, with the dict NULL */
    size_t size, used;
    uint64_t last;
    uint64_t **spare; /* stamps without a dict */
    size_t nspare;
} watch = {.watcher = -1};

static Watched *
watched_place(Watched *table, size_t size, PyObject *dict)
{
    size_t i = ((uintptr_t)dict >> 4) * 0x9E3779B97F4A7C15u >> 20 & (size - 1);
    while (table[i].stamp != NULL && table[i].dict != dict) {
        i = (i + 1) & (size - 1);
    }
    return &table[i];
}

static int
on_dict_event(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    if (watch.table != NULL) {
        Watched *place = watched_place(watch.table, watch.size, dict);
        if (place->stamp != NULL) {
            *place->stamp = ++watch.last;
            if (event == PyDict_EVENT_DEALLOCATED) {
                place->dict = NULL; /* its stamp stays what no trail expects */
            }
        }
    }
    return 0;
}

/* Makes room for more dicts and stamps, and frees the places of those that are gone. */
static bool
grow_watched(void)
{
    size_t size = watch.size ? watch.size : 512, live = 0;
    for (size_t i = 0; i < watch.size; i++) {
        live += watch.table[i].dict != NULL;
    }
    while (size < 4 * (live + 1)) {
        size *= 2;
    }
    Watched *table = PyMem_Calloc(size, sizeof(Watched));
    uint64_t **spare = PyMem_Realloc(watch.spare, size * sizeof(uint64_t *));
    if (spare != NULL) {
        watch.spare = spare;
    }
    uint64_t *stamps = PyMem_Malloc((size / 2) * sizeof(uint64_t));
    if (table == NULL || spare == NULL || stamps == NULL) {
        PyMem_Free(table);
        PyMem_Free(stamps);
        return false;
    }
    for (size_t i = 0; i < watch.size; i++) {
        if (watch.table[i].dict != NULL) {
            *watched_place(table, size, watch.table[i].dict) = watch.table[i];
        }
        else if (watch.table[i].stamp != NULL) {
            watch.spare[watch.nspare++] = watch.table[i].stamp;
        }
    }
    for (size_t i = watch.nspare + live; i < size / 2; i++) {
        watch.spare[watch.nspare++] = stamps++;
    }
    PyMem_Free(watch.table);
    watch.table = table;
    watch.size = size;
    watch.used = live;
    return true;
}

static const uint64_t *
dict_number(PyObject *dict)
{
    if (watch.watcher < 0 && (watch.watcher = PyDict_AddWatcher(on_dict_event)) < 0) {
        PyErr_Clear();
        return NULL;
    }
    if (2 * (watch.used + 1) > watch.size && !grow_watched()) {
        return NULL;
    }
    Watched *place = watched_place(watch.table, watch.size, dict);
    if (place->stamp == NULL) {
        if (PyDict_Watch(watch.watcher, dict) < 0) {
            PyErr_Clear();
            return NULL;
        }
        *place = (Watched){dict, watch.spare[--watch.nspare]};
        *place->stamp = ++watch.last;
        watch.used++;
    }
    return place->stamp;
}
#else /* WATCHED */
/* The dict's own version, unlike any that a dict had before (PEP 509). */
static const uint64_t *
dict_number(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag;
}
#endif

/* ------------------------------------------------------------------ recording */

typedef struct {
    GuardTree *tree;
    Trail *trail;
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
add_word(Recorder *recorder, const void *place, uint64_t expected, int half, bool stamp)
{
    uintptr_t address = (uintptr_t)place | half;
    if (seen_before(recorder->trail, address)) {
        return;
    }
    Word *word = extend(&recorder->trail->words, sizeof(Word));
    if (word == NULL) {
        recorder->trail->sound = false;
        return;
    }
    *word = (Word){address, expected};
#ifdef WATCHED
    if (!stamp) {
        Word *loose = extend(&recorder->trail->loose, sizeof(Word));
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
    add_word(recorder, place, (uint64_t)(uintptr_t)expected, 0, false);
}

static bool
add_rest(Recorder *recorder, int node, int check, PyObject *value)
{
    Rest *rest = extend(&recorder->trail->rests, sizeof(Rest));
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
    Claim *claim = extend(&recorder->trail->claims, sizeof(Claim));
    if (claim == NULL) {
        return false;
    }
    *claim = (Claim){(uintptr_t)dict_number(dict), -1, node, check, firm, dict, key, value};
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
        add_word(recorder, values, *(const uint32_t *)values, HALF, false);
        for (int i = 0; 8 * i < values->capacity; i++) {
            add_word(recorder, order + i, order[i], 0, false);
        }
    }
}

/* The word that an attribute of an instance has this value; false: it cannot be told. */
static bool
seal_value(Recorder *recorder, int id, PyObject *dict, PyObject *key, PyObject *value)
{
    PyDictValues *values = inline_values(dict);
    if (values == NULL) {
        return true;
    }
    PyDictKeysObject *keys = ((PyDictObject *)dict)->ma_keys;
    for (int i = 0; DK_IS_UNICODE(keys) && i < values->capacity && i < keys->dk_nentries; i++) {
        PyObject *name = DK_UNICODE_ENTRIES(keys)[i].me_key;
        if (name == key || (name != NULL && PyUnicode_CheckExact(key) && PyUnicode_Compare(name, key) == 0)) {
            Claim *claim = values->values[i] == value && is_firm(recorder, value)
                               ? extend(&recorder->trail->claims, sizeof(Claim)) : NULL;
            if (claim == NULL) {
                return false;
            }
            *claim = (Claim){(uintptr_t)&values->values[i], -1, id, -1, true, NULL, key, value};
            add_pointer(recorder, &values->values[i], value);
            return true;
        }
    }
    return false;
}
#else
#define seal_inline(recorder, dict)
#define seal_value(recorder, id, dict, key, value) true
#endif

/* The words that the dict holds what it holds now. */
static bool
seal(Recorder *recorder, PyObject *dict)
{
    const uint64_t *number = dict_number(dict);
    if (number == NULL) {
        return false;
    }
    add_word(recorder, number, *number, 0, true);
    seal_inline(recorder, dict);
    return true;
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
    add_word(recorder, &type->tp_version_tag, type->tp_version_tag, HALF, false);
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
    return seal(recorder, dict) && add_claim(recorder, dict, -1, -1, name, NULL);
}

/* Notes what makes the check hold; false: the subtree cannot have a trail now. */
static bool
record_check(Recorder *recorder, int id, PyObject *value, bool sealed)
{
    Check *check = &recorder->tree->checks[id];
    bool dict = PyDict_Check(value);
    switch (check->kind) {
    case CHECK_TYPE:
        if (!is_frozen(value)) { /* the check keeps the class */
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
        TensorTrail *tensor = extend(&recorder->trail->tensors, sizeof(TensorTrail));
        if (tensor == NULL) {
            return false;
        }
        int noted = tensor_trail_record(check->tensor, value, tensor);
        if (noted <= 0) {
            recorder->trail->tensors.count--;
            return noted == 0 && add_rest(recorder, -1, id, value);
        }
        return true;
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
    if (value == NULL || !seal(recorder, dict)) {
        return NULL;
    }
    add_pointer(recorder, &module->ob_type, &PyModule_Type);
    return add_claim(recorder, dict, id, -1, name, value) && seal_value(recorder, id, dict, name, value) ? value : NULL;
}

/* An attribute, where no code of the program is asked for it: an item of a module, a function's code, what is in a
 * place that `__slots__` made (its descriptor comes before what the instance's dict has). */
static PyObject *
record_attr(Recorder *recorder, int id, PyObject *object, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    if (PyModule_Check(object)) {
        return record_module_attr(recorder, id, object, name);
    }
    if (PyFunction_Check(object)) {
        bool code = PyUnicode_CompareWithASCIIString(name, "__code__") == 0;
        return code ? record_part(recorder, &((PyFunctionObject *)object)->func_code) : NULL;
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
            return value;
        }
        return seal(recorder, parent) && add_claim(recorder, parent, id, -1, node->arg, value)
                       && seal_value(recorder, id, parent, node->arg, value)
                   ? value
                   : NULL;
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
    default:
        return NULL;
    }
}

static bool
record_below(Recorder *recorder, int id, PyObject *value, bool sealed)
{
    const Node *node = &recorder->tree->nodes[id];
    for (int c = node->first_check; c >= 0; c = recorder->tree->checks[c].next) {
        if (!record_check(recorder, c, value, sealed)) {
            return false;
        }
    }
    if (node->slot >= 0) {
        Kept *kept = extend(&recorder->trail->kept, sizeof(Kept));
        if (kept == NULL) {
            return false;
        }
        *kept = (Kept){node->slot, value};
    }
    for (int child = node->first_child; child >= 0; child = recorder->tree->nodes[child].next_sibling) {
        const Node *next = &recorder->tree->nodes[child];
        bool below;
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

/* The trail of the guards below a root whose value they have just accepted; NULL: they cannot have one. */
Trail *
trail_record(GuardTree *tree, int id, PyObject *value)
{
    Trail *trail = PyMem_Calloc(1, sizeof(Trail));
    if (trail == NULL) {
        return NULL;
    }
    Recorder recorder = {tree, trail};
    trail->root = value;
    trail->sound = true;
    trail->held = PyList_New(0);
    bool known = tree->nodes[id].kind == NODE_CONSTANT; /* kept by the tree */
    if (trail->held == NULL || !(known || anchor(&recorder, value)) || !record_below(&recorder, id, value, false)
        || !order_claims(trail)) {
        PyErr_Clear();
        trail_free(trail);
        return NULL;
    }
    PyMem_Free(trail->seen.items);
    memset(&trail->seen, 0, sizeof(Array));
    return trail;
}

/* ------------------------------------------------------------------ following a trail */

static void
note_change(GuardTree *tree, const Claim *claim)
{
    if (claim->node >= 0 && tree->nodes[claim->node].changes < TRAIL_FICKLE) {
        tree->nodes[claim->node].changes++;
    }
}

static bool
claim_holds(GuardTree *tree, const Claim *claim)
{
    if (claim->check >= 0) {
        return guard_check_value(&tree->checks[claim->check], claim->dict) == 1;
    }
    PyObject *value = PyDict_GetItemWithError(claim->dict, claim->key);
    if (value != claim->value) {
        note_change(tree, claim);
    }
    return value == claim->value && claim->firm;
}

/* A dict has changed: whether all that was read from it is still the same; then it is known by its new number. */
static bool
still_claimed(GuardTree *tree, Trail *trail, int word)
{
    int low = 0, high = trail->claims.count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (AT(trail->claims, Claim, middle)->word < word) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    if (low == trail->claims.count || AT(trail->claims, Claim, low)->word != word) {
        return false;
    }
    const Claim *first = AT(trail->claims, Claim, low);
    if (first->dict == NULL) {
        note_change(tree, first);
        return false;
    }
    Word *changed = AT(trail->words, Word, word);
    if (!PyDict_Check(first->dict) || (uintptr_t)dict_number(first->dict) != changed->address) {
        return false; /* another object is at the address of one that is gone */
    }
    for (int i = low; i < trail->claims.count && AT(trail->claims, Claim, i)->word == word; i++) {
        if (!claim_holds(tree, AT(trail->claims, Claim, i))) {
            PyErr_Clear();
            return false;
        }
    }
    changed->expected = *(const uint64_t *)changed->address;
    return true;
}

static inline bool
word_holds(const Word *word)
{
    uintptr_t address = word->address;
    return word->expected == (address & HALF ? *(const uint32_t *)(address - HALF) : *(const uint64_t *)address);
}

static bool
words_hold(GuardTree *tree, Trail *trail)
{
#ifdef WATCHED
    if (trail->last == watch.last) { /* no watched dict has changed since, so that the order does not matter */
        for (int i = 0, n = trail->loose.count; i < n; i++) {
            if (!word_holds(AT(trail->loose, Word, i))) {
                return false;
            }
        }
        return true;
    }
#endif
    for (int i = 0, n = trail->words.count; i < n; i++) {
        if (!word_holds(AT(trail->words, Word, i)) && !still_claimed(tree, trail, i)) {
            return false;
        }
    }
#ifdef WATCHED
    trail->last = watch.last;
#endif
    return true;
}

/* True: the words are as they were, and the slots have their values. False: the guards must be evaluated. */
static bool
unchanged(GuardTree *tree, Trail *trail, PyObject **slots)
{
    if (!words_hold(tree, trail)) {
        return false;
    }
    const TensorTrail *tensors = trail->tensors.items;
    for (int i = 0, n = trail->tensors.count; i < n; i++) {
        if (!tensor_trail_holds(&tensors[i])) {
            return false;
        }
    }
    const Kept *kept = trail->kept.items;
    for (int i = 0, n = trail->kept.count; i < n; i++) {
        slots[kept[i].slot] = Py_NewRef(kept[i].value);
    }
    return true;
}

int
trail_holds(GuardTree *tree, Trail *trail, PyObject *value, const GuardSource *source, PyObject **slots)
{
    if (value != trail->root || !unchanged(tree, trail, slots)) {
        return TRAIL_UNKNOWN;
    }
    int n = trail->rests.count, holds = 1;
    if (n == 0) {
        return 1;
    }
    /* What follows may run Python code, which may change what the words named, and the trail itself. */
    Rest small[64], *rests = n <= 64 ? small : PyMem_Malloc(n * sizeof(Rest));
    if (rests == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(rests, trail->rests.items, n * sizeof(Rest));
    for (int i = 0; i < n; i++) {
        Py_INCREF(rests[i].value);
    }
    for (int i = 0; i < n && holds == 1; i++) {
        holds = rests[i].node >= 0 ? guard_eval_node(tree, rests[i].node, rests[i].value, source, slots, NULL)
                                   : guard_settled(guard_check_value(&tree->checks[rests[i].check], rests[i].value));
    }
    for (int i = 0; i < n; i++) {
        Py_DECREF(rests[i].value);
    }
    if (rests != small) {
        PyMem_Free(rests);
    }
    return holds;
}

/* (words, tensors, evaluated): how much of each a trail has. */
PyObject *
trail_sizes(const Trail *trail)
{
    return Py_BuildValue("(iii)", trail->words.count, trail->tensors.count, trail->rests.count);
}
