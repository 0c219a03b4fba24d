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
 * it lives; and where it matters only by what its own words say, which is so of dicts, tensors and instances: their
 * type is compared when they are looked up again, and where an object can change its class, a check of it leaves a word.
 */
#include "trail.h"

void *
trail_extend(Array *array, size_t size)
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
    Array *arrays[] = {&trail->words, &trail->claims, &trail->rests, &trail->kept, &trail->seen, &trail->starts};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        PyMem_Free(arrays[i]->items);
    }
#ifdef WATCHED
    PyMem_Free(trail->loose.items);
#endif
    tensor_trails_free(&trail->tensors);
    Py_XDECREF(trail->held);
    PyMem_Free(trail);
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
    return value == claim->value && claim->firm && (value == NULL || Py_TYPE(value) == claim->type);
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
    if (!PyDict_Check(first->dict) || (uintptr_t)trail_dict_number(first->dict) != changed->address) {
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
    return *(const uint64_t *)word->address == word->expected;
}

/* The first of the words, from one on, that is another now; `n`: none. In order, as a word may say that the address
 * of the next one is still valid. */
static int
first_changed(const Word *words, int i, int n)
{
    for (; i + 4 <= n; i += 4) { /* the loop of every call: the words are compared in turn, with a branch for four */
        if (!(word_holds(&words[i]) && word_holds(&words[i + 1]) && word_holds(&words[i + 2])
              && word_holds(&words[i + 3]))) {
            break;
        }
    }
    while (i < n && word_holds(&words[i])) {
        i++;
    }
    return i;
}

static bool
words_hold(GuardTree *tree, Trail *trail)
{
#ifdef WATCHED
    /* No watched dict has changed since, so that the order does not matter. */
    if (trail->last == trail_last_event
        && first_changed(trail->loose.items, 0, trail->loose.count) == trail->loose.count) {
        return true;
    }
#endif
    const Word *words = trail->words.items;
    for (int i = 0, n = trail->words.count; (i = first_changed(words, i, n)) < n; i++) {
        if (!still_claimed(tree, trail, i)) {
            trail->changed = i;
            return false;
        }
    }
#ifdef WATCHED
    trail->last = trail_last_event;
#endif
    return true;
}

/* True: the words are as they were, and the slots have their values. False: the guards must be evaluated. */
static bool
unchanged(GuardTree *tree, Trail *trail, PyObject **slots)
{
    if (!words_hold(tree, trail) || !tensor_trails_hold(&trail->tensors, slots)) {
        return false;
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
    trail->changed = -1;
    if (value != trail->root || (value == NULL && (trail->globals != source->globals || trail->builtins != source->builtins))
        || !unchanged(tree, trail, slots)) {
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
        Py_XINCREF(rests[i].value); /* a root has none */
    }
    for (int i = 0; i < n && holds == 1; i++) {
        holds = rests[i].node >= 0 ? guard_eval_node(tree, rests[i].node, rests[i].value, source, slots, NULL)
                                   : guard_settled(guard_check_value(&tree->checks[rests[i].check], rests[i].value));
    }
    for (int i = 0; i < n; i++) {
        Py_XDECREF(rests[i].value);
    }
    if (rests != small) {
        PyMem_Free(rests);
    }
    return holds;
}

/* The root of a shared trail whose words were others; -1: not known. */
int
trail_blamed(const Trail *trail)
{
    int node = -1;
    for (int i = 0; trail->changed >= 0 && i < trail->starts.count; i++) {
        const Start *start = AT(trail->starts, Start, i);
        if (start->word > trail->changed) {
            break;
        }
        node = start->node;
    }
    return node;
}

/* (words, tensors, evaluated): how much of each a trail has. */
PyObject *
trail_sizes(const Trail *trail)
{
    return Py_BuildValue("(iii)", trail->words.count, trail->tensors.count, trail->rests.count);
}
