/* What trail.c, trail_watch.c and trail_record.c share. */
#ifndef QUINTET_TRAIL_H
#define QUINTET_TRAIL_H
#include "capture.h"

#if PY_VERSION_HEX >= 0x030C0000
#define WATCHED /* dicts by watchers; else by their versions */
#endif

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
    PyTypeObject *type;  /* the value's: a check of it is kept by the tree */
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

/* Where the words of a root begin in a trail that several share. */
typedef struct {
    int node, word;
} Start;

struct Trail {
    PyObject *root;      /* borrowed; NULL of a trail that several roots share */
    const void *globals, *builtins; /* of a shared trail: the dicts it is about; only compared */
    int changed;         /* the word that was another when it was of no use; -1: none */
    Array starts;
    Array words, claims, rests, kept;
    TensorTrails tensors;
#ifdef WATCHED
    Array loose;         /* those of the words that are no stamps */
    uint64_t last;       /* the last event when all of them were right */
#endif
    PyObject *held;      /* list of weak references, whose referents the words name, and of constants */
    Array seen;          /* while it is recorded: addresses that have a word, open-addressed */
    bool sound;
};

#define AT(array, type, i) (&((type *)(array).items)[i])

/* A new place at the end; NULL: no memory. */
void *trail_extend(Array *array, size_t size);

/* Where a number is that changes whenever the dict does, and that no dict has had before; NULL: it has none. */
const uint64_t *trail_dict_number(PyObject *dict);
#ifdef WATCHED
extern uint64_t trail_last_event; /* a number that every change of a watched dict changes */
#endif

#endif
