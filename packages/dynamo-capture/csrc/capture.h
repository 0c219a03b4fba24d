/* Shared declarations of the extension `dynamo_capture._native`.
 *
 * hook.c         the frame hook, per-code state, running a replaced frame
 * objects.c      Context, Entry, activate
 * guards_eval.c  evaluation of guard trees
 * guards_finals.c checks over several nodes
 * guards_classes.c what guards ask of keys, classes and functions
 * guards_text.c  guards as text
 * guards.c       the GuardTree type: nodes, evaluation from Python
 * guards_checks.c  its methods that add checks
 * trail.c        what guards rested on when they held last: compared with now
 * trail_record.c  what they rest on, noted
 * trail_watch.c  numbers of dicts
 * tensor.c       tensor metadata and global state without linking to torch
 * tensor_trail.c tensors in trails
 * module.c       the module and its functions
 */
#ifndef DYNAMO_CAPTURE_H
#define DYNAMO_CAPTURE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "dynamo_capture supports Python 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "dynamo_capture needs a Python with the GIL"
#endif

/* What to do with a code object. The values are part of the Python API. */
enum { ACTION_RUN = 0, ACTION_SKIP = 1, ACTION_SKIP_RECURSIVE = 2, ACTION_TRACE = 3, ACTION_LEAVE = 4 };

typedef struct CodeState CodeState;
typedef struct GuardTree GuardTree;

/* ------------------------------------------------------------------ objects.c */

typedef struct {
    PyObject_HEAD
    PyObject *filter;
    PyObject *translate;
    PyObject *notice; /* told of calls that run no compiled code; may be NULL */
    PyObject *tag;
    PyObject *weakrefs;
    bool plain;       /* no call is ever compiled, so that the notice comes before it */
} Context;

/* When a notice is given: before a call that will run plainly, or after one that did (and returned or raised). */
enum { NOTICE_BEFORE, NOTICE_RAN, NOTICE_RAISED };

typedef struct Entry {
    PyObject_HEAD
    PyCodeObject *code;
    GuardTree *guards; /* may be NULL: matches always */
    PyObject *tag;
    PyObject *func;    /* function of `code`, kept for the globals of a module; else NULL */
    const void *unkept_globals; /* globals for which none is kept; only compared */
    CodeState *state;  /* where it is cached; NULL when it is not */
    Context *context;  /* borrowed; valid while `state` is set */
    Py_ssize_t hits;
    bool valid;
    bool compiled;     /* its code calls a compiled graph */
} Entry;

extern PyTypeObject Context_Type, Entry_Type, Activate_Type;

/* ------------------------------------------------------------------ hook.c */

typedef struct {
    uint64_t frames, hits, misses, translations;
} HookStats;
extern HookStats hook_stats;

int hook_init(void);
extern __thread uint64_t hook_compiled_runs;
bool hook_is_traced(void);
/* Every call of a compiled callable runs without the hook. */
extern bool hook_all_eager;
/* Both take and give owned references (either may be NULL). */
Context *hook_swap_active(Context *context);
Context *hook_active(void); /* borrowed */
int hook_mark(PyCodeObject *code, int action);
int hook_marked(PyCodeObject *code);
PyObject *hook_entries(PyCodeObject *code, Context *context);
int hook_reset_code(PyCodeObject *code);
void hook_reset_all(void);
void hook_forget_context(Context *context);
void hook_invalidate(Entry *entry);

/* ------------------------------------------------------------------ guards */

/* The values a guard tree reads: all borrowed. */
typedef struct {
    PyObject **args;
    Py_ssize_t nargs;
    PyObject *globals;
    PyObject *builtins;
    PyObject *closure; /* tuple of cells or NULL */
} GuardSource;

enum NodeKind {
    NODE_ROOT,
    NODE_LOCAL,
    NODE_CLOSURE,
    NODE_CLOSURE_CELL,
    NODE_GLOBAL,
    NODE_GLOBALS_DICT,
    NODE_BUILTIN,
    NODE_CONSTANT,
    NODE_WEAK,
    NODE_ATTR,
    NODE_INSTANCE_DICT,
    NODE_ITEM,
    NODE_DICT_KEY,
    NODE_DICT_VALUE,
    NODE_TYPE,
    NODE_FUNC_CLOSURE,
    NODE_FUNC_CLOSURE_CELL,
    NODE_FUNC_DEFAULTS,
    NODE_FUNC_KWDEFAULTS,
    NODE_FUNC_CODE,
    NODE_METHOD_SELF,
    NODE_METHOD_FUNC,
    NODE_CALL,
};

typedef struct Trail Trail;
typedef struct Finals Finals;
#define TRAIL_FICKLE 2  /* changes of a value after which it is read anew each time */

/* What guards rested on, and how often that was of use. */
typedef struct {
    Trail *trail;       /* NULL: none */
    uint16_t misses, wait, streak; /* how often trails were of no use; evaluations before the next; uses since */
} Course;

typedef struct {
    uint8_t kind;
    uint8_t changes;    /* how often a trail found another value, up to TRAIL_FICKLE */
    bool live;          /* has a check, a slot or a live child (set by guard_prepare) */
    bool apart;         /* of a root: it shares no trail with others */
    uint8_t blamed;     /* of a root: how often it spoilt the trail that it shares */
    int parent;
    int first_child, last_child, next_sibling;
    int first_check, last_check;
    int slot;           /* where the value is kept until the end, -1: nowhere */
    Py_ssize_t index;
    PyObject *arg;
    PyObject *name;     /* text of a root or of a call, may be NULL */
    Course course;      /* of a root that shares no trail */
} Node;

enum CheckKind {
    CHECK_TYPE,
    CHECK_ID,
    CHECK_EQUALS,
    CHECK_LEN,
    CHECK_DICT_KEYS,
    CHECK_CONTAINS,
    CHECK_NO_INSTANCE_ATTR,
    CHECK_SET,
    CHECK_TENSOR,
    CHECK_LAMBDA,
    CHECK_CLASS_ATTR,
    CHECK_MRO,
    CHECK_FUNCTION,
    /* over several nodes, after all nodes: */
    CHECK_SAME,
    CHECK_DISTINCT,
    CHECK_NO_OVERLAP,
    CHECK_SHAPE,
    CHECK_GLOBAL_STATE,
    CHECK_CALL,
    CHECK_SUBCLASSES,
    CHECK_TOGETHER,
};

struct TensorMeta;
struct StateMeta;

enum ShapeOp {
    SHAPE_CONST, SHAPE_SIZE, SHAPE_STRIDE, SHAPE_OFFSET, SHAPE_NUMEL, SHAPE_INT,
    SHAPE_ADD, SHAPE_SUB, SHAPE_MUL, SHAPE_FLOORDIV, SHAPE_MOD, SHAPE_CEILDIV, SHAPE_MIN, SHAPE_MAX,
    SHAPE_EQ, SHAPE_NE, SHAPE_LT, SHAPE_LE, SHAPE_GT, SHAPE_GE, SHAPE_AND, SHAPE_OR,
    SHAPE_NEG, SHAPE_ABS, SHAPE_NOT,
};
#define SHAPE_MAX_DEPTH 64

typedef struct {
    int op;
    int node;
    int64_t value; /* constant, or dimension */
} ShapeToken;

typedef struct {
    uint8_t kind;
    int next;
    int node;               /* -1 for checks over several nodes */
    Py_ssize_t number;      /* length; presence; number of tokens or nodes; a version for which it is known to hold */
    Py_ssize_t leading;     /* CHECK_NO_OVERLAP: how many of the nodes are written into */
    void *pointer;          /* CHECK_ID: the object's address; CHECK_FUNCTION: the code's */
    const void *globals;    /* CHECK_FUNCTION; only compared */
    PyObject *object;       /* what it compares with */
    struct TensorMeta *tensor;
    struct StateMeta *state;
    ShapeToken *tokens;
    int *nodes;
    PyObject *text, *reason; /* may be NULL */
} Check;

struct GuardTree {
    PyObject_HEAD
    Node *nodes;
    int nnodes, nodes_capacity;
    Check *checks;
    int nchecks, checks_capacity;
    int first_final, last_final; /* chain of the checks over several nodes */
    Finals *finals;              /* the same as calls evaluate them; NULL: no memory for it */
    int *collect;                /* collected nodes: they have the slots 0 .. ncollect - 1 */
    int ncollect, nslots;
    int *roots;                  /* live ones: `napart` that are followed alone, then `nshared` that share a trail */
    int napart, nshared;
    Course shared;
    bool prepared, valid;
    int busy;                    /* evaluations in progress: the tree must not grow */
    PyObject *interned;          /* (kind, parent, key) -> node id */
    PyObject *death;             /* callback of every weak reference; NULL until one is needed */
    Entry *owner;                /* borrowed */
};

extern PyTypeObject GuardTree_Type, Death_Type;

typedef struct {
    int node, check;   /* check is -1 if the node's value could not be read */
    PyObject *value;   /* owned, may be NULL */
} GuardFailure;

/* Evaluates; 1 holds, 0 fails, -1 a BaseException that is no Exception. `slots` has room for nslots references;
 * on success the first ncollect hold new references, else none do. `failure` may be NULL. */
int guard_eval(GuardTree *tree, const GuardSource *source, PyObject **slots, GuardFailure *failure);
void guard_prepare(GuardTree *tree);
int guard_eval_node(GuardTree *tree, int id, PyObject *parent, const GuardSource *source, PyObject **slots,
                    GuardFailure *failure);
/* 1 holds, 0 fails, -1 exception. */
int guard_check_value(Check *check, PyObject *value);
/* The same, but an Exception counts as a failure. */
int guard_settled(int holds);
int guard_settle(void);
void guard_note_failure(GuardFailure *failure, int node, int check, PyObject *value);
/* guards_finals.c */
int guard_finals_hold(GuardTree *tree, PyObject **slots, GuardFailure *failure);
void guard_finals_prepare(GuardTree *tree);
void guard_finals_free(GuardTree *tree);
/* trail.c */
Trail *trail_record(GuardTree *tree, int id, PyObject *value);
/* One trail for roots that are the same in every call; those that cannot have one are set apart. */
Trail *trail_record_shared(GuardTree *tree, const int *roots, int n, const GuardSource *source);
int trail_blamed(const Trail *trail);
/* As guard_eval, or TRAIL_UNKNOWN: they must be evaluated. */
#define TRAIL_UNKNOWN 2
int trail_holds(GuardTree *tree, Trail *trail, PyObject *value, const GuardSource *source, PyObject **slots);
void trail_free(Trail *trail);
PyObject *trail_sizes(const Trail *trail);
PyObject *guard_referent(PyObject *weak_reference);

/* The first entry at or behind a place of a dict's table (borrowed); a dict from which nothing was taken has its n-th entry
 * at the place n. False: there is none. */
bool guard_dict_entry(PyObject *dict, Py_ssize_t place, PyObject **key, PyObject **value);
bool guard_const_equal(PyObject *a, PyObject *b);
/* guards_classes.c: true or false, -1 with an exception, new references. */
bool guard_key_equal(PyObject *a, PyObject *b);
bool guard_same_sequence(PyObject *set, PyObject *elements);
PyObject *guard_class_dict(PyTypeObject *type);
int guard_class_attr_holds(Check *check, PyObject *value);
bool guard_function_is(const Check *check, PyObject *value);
int guard_subclasses_hold(Check *check);
PyObject *guard_path(GuardTree *tree, int node);
PyObject *guard_check_text(GuardTree *tree, int check);
PyObject *guard_failure_text(GuardTree *tree, const GuardFailure *failure);

/* guards.c, for guards_checks.c: -1 or NULL come with an exception, but for a NULL of guard_watch. */
int guard_may_change(GuardTree *tree);
int guard_check_node(GuardTree *tree, int node);
PyObject *guard_watch(GuardTree *tree, PyObject *object);
int *guard_parse_nodes(GuardTree *tree, PyObject *sequence, Py_ssize_t *count);
PyObject *guard_check_type(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_equals(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_mro(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_no_instance_attr(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_set(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_lambda(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_id(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_dict_keys(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_len(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_contains(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_tensor(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_same(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_distinct(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_together(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_no_overlap(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_shape(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_global_state(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_call(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_class_attr(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_function(GuardTree *self, PyObject *args, PyObject *kwargs);
PyObject *guard_check_subclasses(GuardTree *self, PyObject *args, PyObject *kwargs);

/* ------------------------------------------------------------------ tensor.c */

#define TENSOR_MAX_DIMS 64

typedef struct {
    int64_t ndim;
    const int64_t *sizes;
    const int64_t *strides; /* NULL for a layout without strides */
    int64_t offset;
    int64_t buffer[2 * TENSOR_MAX_DIMS]; /* used by the attribute path */
} TensorShape;

typedef struct TensorMeta TensorMeta;
typedef struct StateMeta StateMeta;

/* Reads sizes, strides and offset; -1 with an exception. */
int tensor_shape(PyObject *tensor, TensorShape *out);
/* The addresses [start, end) that a strided tensor reaches; empty for one without memory. -1 with an exception. */
int tensor_extent(PyObject *tensor, int64_t *start, int64_t *end);
/* Whether the metadata of a subclass are those in its memory, as a plain tensor's are; STORED_UNASKED: the attributes, for
 * which its Python may be asked, are left out. */
typedef enum { NOT_STORED, STORED, STORED_UNASKED } StoredMetadata;
TensorMeta *tensor_meta_new(PyObject *example, PyObject *sizes, PyObject *strides, int64_t min_size,
                            PyObject *requires_grad, bool storage_offset, StoredMetadata stored);
void tensor_meta_free(TensorMeta *meta);
int tensor_meta_traverse(TensorMeta *meta, visitproc visit, void *arg);
/* 1 holds, 0 fails (no exception set), -1 exception. */
int tensor_meta_check(const TensorMeta *meta, PyObject *value);
/* Tensors that passed a check, as the memory that they were seen by: who they are, and what those of one class with the
 * same sizes, strides, offset, element type, keys and `requires_grad` have in common. */
typedef struct {
    uint64_t words[12], last[4]; /* from the shape on; up to the keys */
    PyTypeObject *type;
    bool requires_grad;
    bool elsewhere; /* not on the CPU */
    int32_t device_index;
    int end;        /* the number of the first tensor behind those of this picture */
} Picture;
typedef struct {
    PyObject *tensor;       /* borrowed */
    const uint64_t *window; /* a part of its TensorImpl */
    const uint8_t *kept;    /* what autograd keeps of it, if that has been found to mark it; else NULL */
    int picture, slot;      /* -1: it has no slot */
} TensorTrail;
typedef struct {
    TensorTrail *items; /* when finished, sorted by picture */
    Picture *pictures;
    int count, capacity, npictures;
} TensorTrails;
/* 1 noted as the last one, 0 its memory does not tell, -1 the check fails. */
int tensor_trail_record(const TensorMeta *meta, PyObject *value, TensorTrails *trails);
/* Whether all are as they were; then slots have new references to them, else none. */
bool tensor_trails_hold(const TensorTrails *trails, PyObject **slots);
void tensor_trails_finish(TensorTrails *trails);
void tensor_trails_free(TensorTrails *trails);
bool tensor_is(PyObject *value);
PyObject *tensor_meta_text(const TensorMeta *meta);
PyObject *tensor_describe(PyObject *value);
/* In what a value differs from what is wanted, in words; NULL without an exception where it is no tensor. */
PyObject *tensor_difference(const TensorMeta *meta, PyObject *value);
StateMeta *state_meta_new(void);
void state_meta_free(StateMeta *meta);
int state_meta_check(const StateMeta *meta);
PyObject *state_meta_difference(const StateMeta *meta);
PyObject *tensor_init(PyObject *module, PyObject *args);
PyObject *tensor_state_words(PyObject *module, PyObject *unused);
PyObject *tensor_read(PyObject *module, PyObject *tensor);
PyObject *tensor_use_native(PyObject *module, PyObject *args);

#endif
