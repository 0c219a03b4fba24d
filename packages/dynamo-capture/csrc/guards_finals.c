/* Checks over several nodes, after all nodes. */
#include "capture.h"
#include <stdlib.h>

/* The values of some nodes are different objects. Mostly they are the ones of the call before, which were: they are
 * kept as numbers, and only the others are looked for among them. */
typedef struct {
    int count;
    int *slots;
    uintptr_t *last;    /* values of an earlier call */
    int *table;         /* open-addressed: an index of `last`, or -1; at most half full */
    size_t size;
    bool known;         /* those were distinct */
} Distinct;

static size_t
distinct_place(const Distinct *distinct, uintptr_t value)
{
    size_t place = (value >> 4) * 0x9E3779B97F4A7C15u >> 20 & (distinct->size - 1);
    while (distinct->table[place] >= 0 && distinct->last[distinct->table[place]] != value) {
        place = (place + 1) & (distinct->size - 1);
    }
    return place;
}

/* All values anew; they are kept if they are distinct. */
static bool
distinct_anew(Distinct *distinct, PyObject **slots)
{
    memset(distinct->table, -1, distinct->size * sizeof(int));
    distinct->known = true;
    for (int i = 0; i < distinct->count && distinct->known; i++) {
        uintptr_t value = (uintptr_t)slots[distinct->slots[i]];
        size_t place = distinct_place(distinct, value);
        distinct->known = distinct->table[place] < 0;
        distinct->table[place] = i;
        distinct->last[i] = value;
    }
    return distinct->known;
}

#define DISTINCT_OTHERS 8 /* with more values that are others than before, all are looked at */

static bool
distinct_holds(Distinct *distinct, PyObject **slots)
{
    int others[DISTINCT_OTHERS], n = 0;
    for (int i = 0; i < distinct->count; i++) {
        if ((uintptr_t)slots[distinct->slots[i]] == distinct->last[i]) {
            continue;
        }
        if (n == DISTINCT_OTHERS) {
            return distinct_anew(distinct, slots);
        }
        others[n++] = i;
    }
    if (!distinct->known) {
        return distinct_anew(distinct, slots);
    }
    for (int i = 0; i < n; i++) {
        PyObject *value = slots[distinct->slots[others[i]]];
        int found = distinct->table[distinct_place(distinct, (uintptr_t)value)];
        /* Where it was before there may be another one now, which then is among the others. */
        if (found >= 0 && slots[distinct->slots[found]] == value) {
            return false;
        }
        for (int j = 0; j < i; j++) {
            if (slots[distinct->slots[others[j]]] == value) {
                return false;
            }
        }
    }
    return true;
}

static void
distinct_free(Distinct *distinct)
{
    PyMem_Free(distinct->slots);
    PyMem_Free(distinct->last);
    PyMem_Free(distinct->table);
}

static bool
distinct_new(Distinct *distinct, const GuardTree *tree, const Check *check)
{
    int n = (int)check->number;
    *distinct = (Distinct){.count = n, .size = 16};
    while (distinct->size < 2 * (size_t)n) {
        distinct->size *= 2;
    }
    distinct->slots = PyMem_Malloc(n * sizeof(int));
    distinct->last = PyMem_Calloc(n, sizeof(uintptr_t));
    distinct->table = PyMem_Malloc(distinct->size * sizeof(int));
    if (distinct->slots == NULL || distinct->last == NULL || distinct->table == NULL) {
        distinct_free(distinct);
        return false;
    }
    for (int i = 0; i < n; i++) {
        distinct->slots[i] = tree->nodes[check->nodes[i]].slot;
    }
    return true;
}

static bool
all_distinct(const GuardTree *tree, const Check *check, PyObject **slots)
{
    Distinct distinct;
    bool holds = distinct_new(&distinct, tree, check) && distinct_anew(&distinct, slots);
    distinct_free(&distinct);
    return holds;
}

typedef struct {
    int64_t begin, end;
    bool written;
} Extent;

static int
by_begin(const void *a, const void *b)
{
    int64_t x = ((const Extent *)a)->begin, y = ((const Extent *)b)->begin;
    return (x > y) - (x < y);
}

/* Whether an extent that is written overlaps another one; sorts them. */
static bool
written_overlap(Extent *extents, Py_ssize_t n)
{
    int64_t end = INT64_MIN, written_end = INT64_MIN; /* of all so far, and of the written ones */
    qsort(extents, n, sizeof(Extent), by_begin);
    for (Py_ssize_t i = 0; i < n; i++) {
        const Extent *e = &extents[i];
        if (e->begin < (e->written ? end : written_end)) {
            return true;
        }
        end = e->end > end ? e->end : end;
        written_end = e->written && e->end > written_end ? e->end : written_end;
    }
    return false;
}

/* No tensor of the first `leading` nodes reaches memory that another of the nodes reaches. */
static int
no_overlap(const GuardTree *tree, const Check *check, PyObject **slots)
{
    Extent small[64];
    Extent *extents = check->number <= 64 ? small : PyMem_Malloc(check->number * sizeof(Extent));
    if (extents == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t n = 0;
    int holds = 1;
    for (Py_ssize_t i = 0; holds == 1 && i < check->number; i++) {
        Extent e = {0, 0, i < check->leading};
        if (tensor_extent(slots[tree->nodes[check->nodes[i]].slot], &e.begin, &e.end) < 0) {
            holds = -1;
        } else if (e.begin < e.end) {
            extents[n++] = e;
        }
    }
    if (holds == 1) {
        holds = !written_overlap(extents, n);
    }
    if (extents != small) {
        PyMem_Free(extents);
    }
    return holds;
}

/* Puts the operand's value; false if it has none. */
static bool
shape_operand(const GuardTree *tree, const ShapeToken *token, PyObject **slots, int64_t *out)
{
    if (token->op == SHAPE_CONST) {
        *out = token->value;
        return true;
    }
    PyObject *value = slots[tree->nodes[token->node].slot];
    if (token->op == SHAPE_INT) {
        int overflow = 0;
        // A bool, or a member of an enumeration, is another program's: it prints, indexes and promotes otherwise.
        bool is_int = PyLong_CheckExact(value);
        *out = is_int ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
        return is_int && !overflow;
    }
    TensorShape shape;
    if (tensor_shape(value, &shape) < 0) {
        PyErr_Clear();
        return false;
    }
    if (token->op == SHAPE_OFFSET) {
        *out = shape.offset;
        return true;
    }
    if (token->op == SHAPE_NUMEL) {
        int64_t numel = 1;
        for (int64_t i = 0; i < shape.ndim; i++) {
            if (__builtin_mul_overflow(numel, shape.sizes[i], &numel)) {
                return false;
            }
        }
        *out = numel;
        return true;
    }
    int64_t dim = token->value < 0 ? token->value + shape.ndim : token->value;
    const int64_t *source = token->op == SHAPE_SIZE ? shape.sizes : shape.strides;
    if (dim < 0 || dim >= shape.ndim || source == NULL) {
        return false;
    }
    *out = source[dim];
    return true;
}

static bool
floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        return false;
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
    return true;
}

static bool
shape_binary(int op, int64_t a, int64_t b, int64_t *out)
{
    int64_t quotient, remainder;
    switch (op) {
    case SHAPE_ADD:
        return !__builtin_add_overflow(a, b, out);
    case SHAPE_SUB:
        return !__builtin_sub_overflow(a, b, out);
    case SHAPE_MUL:
        return !__builtin_mul_overflow(a, b, out);
    case SHAPE_FLOORDIV:
        return floor_divide(a, b, out, &remainder);
    case SHAPE_MOD:
        return floor_divide(a, b, &quotient, out);
    case SHAPE_CEILDIV:
        if (!floor_divide(a, b, &quotient, &remainder)) {
            return false;
        }
        *out = quotient + (remainder != 0);
        return true;
    case SHAPE_MIN:
        *out = a < b ? a : b;
        return true;
    case SHAPE_MAX:
        *out = a > b ? a : b;
        return true;
    case SHAPE_EQ:
        *out = a == b;
        return true;
    case SHAPE_NE:
        *out = a != b;
        return true;
    case SHAPE_LT:
        *out = a < b;
        return true;
    case SHAPE_LE:
        *out = a <= b;
        return true;
    case SHAPE_GT:
        *out = a > b;
        return true;
    case SHAPE_GE:
        *out = a >= b;
        return true;
    case SHAPE_AND:
        *out = a && b;
        return true;
    default:
        *out = a || b;
        return true;
    }
}

/* The program's depth and arity were checked when it was built. */
static bool
shape_holds(const GuardTree *tree, const Check *check, PyObject **slots)
{
    int64_t stack[SHAPE_MAX_DEPTH];
    int depth = 0;
    for (Py_ssize_t i = 0; i < check->number; i++) {
        const ShapeToken *token = &check->tokens[i];
        if (token->op <= SHAPE_INT) {
            if (!shape_operand(tree, token, slots, &stack[depth++])) {
                return false;
            }
        }
        else if (token->op == SHAPE_NOT) {
            stack[depth - 1] = !stack[depth - 1];
        }
        else if (token->op == SHAPE_NEG || token->op == SHAPE_ABS) {
            int64_t value = stack[depth - 1];
            if (value == INT64_MIN) {
                return false;
            }
            stack[depth - 1] = token->op == SHAPE_NEG || value < 0 ? -value : value;
        }
        else {
            depth--;
            if (!shape_binary(token->op, stack[depth - 1], stack[depth], &stack[depth - 1])) {
                return false;
            }
        }
    }
    return stack[0] != 0;
}

static int
together_holds(const GuardTree *tree, const Check *check, PyObject **slots)
{
    PyObject *values = PyTuple_New(check->number);
    for (Py_ssize_t i = 0; values != NULL && i < check->number; i++) {
        PyTuple_SET_ITEM(values, i, Py_NewRef(slots[tree->nodes[check->nodes[i]].slot]));
    }
    PyObject *result = values != NULL ? PyObject_Call(check->object, values, NULL) : NULL;
    Py_XDECREF(values);
    if (result == NULL) {
        return -1;
    }
    int holds = PyObject_IsTrue(result);
    Py_DECREF(result);
    return holds;
}

static int
check_final(const GuardTree *tree, Check *check, PyObject **slots)
{
    switch (check->kind) {
    case CHECK_SAME:
        return slots[tree->nodes[check->nodes[0]].slot] == slots[tree->nodes[check->nodes[1]].slot];
    case CHECK_DISTINCT:
        return all_distinct(tree, check, slots);
    case CHECK_NO_OVERLAP:
        return no_overlap(tree, check, slots);
    case CHECK_SHAPE:
        return shape_holds(tree, check, slots);
    case CHECK_GLOBAL_STATE:
        return state_meta_check(check->state);
    case CHECK_SUBCLASSES:
        return guard_subclasses_hold(check);
    case CHECK_TOGETHER:
        return together_holds(tree, check, slots);
    default: {
        PyObject *value = PyObject_CallNoArgs(check->pointer);
        if (value == NULL) {
            return -1;
        }
        bool equal = guard_const_equal(value, check->object);
        Py_DECREF(value);
        return equal;
    }
    }
}

/* ------------------------------------------------------------------ all of them */

typedef struct {
    int one, other; /* slots */
} Slots;

/* The checks in the form in which every call evaluates them: about identity by slots, in rows; the others in order. */
struct Finals {
    Slots *same, *different;
    Distinct *distinct;
    int *others; /* checks */
    int nsame, ndifferent, ndistinct, nothers;
};

static bool
identities_hold(Finals *finals, PyObject **slots)
{
    for (int i = 0; i < finals->nsame; i++) {
        if (slots[finals->same[i].one] != slots[finals->same[i].other]) {
            return false;
        }
    }
    for (int i = 0; i < finals->ndifferent; i++) {
        if (slots[finals->different[i].one] == slots[finals->different[i].other]) {
            return false;
        }
    }
    for (int i = 0; i < finals->ndistinct; i++) {
        if (!distinct_holds(&finals->distinct[i], slots)) {
            return false;
        }
    }
    return true;
}

int
guard_finals_hold(GuardTree *tree, PyObject **slots, GuardFailure *failure)
{
    Finals *finals = tree->finals;
    int holds = 1;
    if (finals == NULL || failure != NULL) {
        for (int c = tree->first_final; holds == 1 && c >= 0; c = tree->checks[c].next) {
            holds = check_final(tree, &tree->checks[c], slots);
            if (holds != 1) {
                guard_note_failure(failure, -1, c, NULL);
                holds = guard_settle();
            }
        }
        return holds;
    }
    if (!identities_hold(finals, slots)) {
        return 0;
    }
    for (int i = 0; i < finals->nothers && holds == 1; i++) {
        holds = guard_settled(check_final(tree, &tree->checks[finals->others[i]], slots));
    }
    return holds;
}

void
guard_finals_free(GuardTree *tree)
{
    Finals *finals = tree->finals;
    if (finals != NULL) {
        for (int i = 0; i < finals->ndistinct; i++) {
            distinct_free(&finals->distinct[i]);
        }
        PyMem_Free(finals->same);
        PyMem_Free(finals->different);
        PyMem_Free(finals->distinct);
        PyMem_Free(finals->others);
        PyMem_Free(finals);
        tree->finals = NULL;
    }
}

/* Once every node that a check is about has a slot. Without memory the checks are evaluated as they are. */
void
guard_finals_prepare(GuardTree *tree)
{
    guard_finals_free(tree);
    int n = 1;
    for (int c = tree->first_final; c >= 0; c = tree->checks[c].next) {
        n++;
    }
    Finals *finals = tree->finals = PyMem_Calloc(1, sizeof(Finals));
    if (finals == NULL) {
        return;
    }
    finals->same = PyMem_Malloc(n * sizeof(Slots));
    finals->different = PyMem_Malloc(n * sizeof(Slots));
    finals->distinct = PyMem_Malloc(n * sizeof(Distinct));
    finals->others = PyMem_Malloc(n * sizeof(int));
    bool sound = finals->same != NULL && finals->different != NULL && finals->distinct != NULL
                 && finals->others != NULL;
    for (int c = tree->first_final; c >= 0 && sound; c = tree->checks[c].next) {
        const Check *check = &tree->checks[c];
        bool pair = check->kind == CHECK_SAME || (check->kind == CHECK_DISTINCT && check->number == 2);
        if (pair) {
            Slots slots = {tree->nodes[check->nodes[0]].slot, tree->nodes[check->nodes[1]].slot};
            if (check->kind == CHECK_SAME) {
                finals->same[finals->nsame++] = slots;
            }
            else {
                finals->different[finals->ndifferent++] = slots;
            }
        }
        else if (check->kind == CHECK_DISTINCT) {
            sound = distinct_new(&finals->distinct[finals->ndistinct], tree, check);
            finals->ndistinct += sound;
        }
        else {
            finals->others[finals->nothers++] = c;
        }
    }
    if (!sound) {
        guard_finals_free(tree);
    }
}
