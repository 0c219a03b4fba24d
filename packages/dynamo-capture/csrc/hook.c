/* The frame hook: evaluation function, per-code state, and running the code that replaces a frame.
 *
 * Per code object the extra slot holds NULL (unknown), the tag SKIP or SKIP_RECURSIVE, or a CodeState.
 * A CodeState lives as long as its code object, so a pointer to it stays good while a frame of it runs; the
 * arrays inside may change whenever Python code runs, which `version` tells.
 */
#define Py_BUILD_CORE_MODULE 1
#include "capture.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_interp.h"
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_interpframe.h"
#include "internal/pycore_stackref.h"
#endif
#include "opcode.h"

#define TAG_SKIP ((void *)(intptr_t)ACTION_SKIP)
#define TAG_SKIP_RECURSIVE ((void *)(intptr_t)ACTION_SKIP_RECURSIVE)
#define IS_TAG(extra) ((uintptr_t)(extra) <= ACTION_SKIP_RECURSIVE)
#define SMALL_STACK 24
#define MONITORING_DEBUGGER 0 /* sys.monitoring.DEBUGGER_ID */

#if PY_VERSION_HEX < 0x030C0000
#define PyUnstable_Code_GetExtra _PyCode_GetExtra
#define PyUnstable_Code_SetExtra _PyCode_SetExtra
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#endif

typedef struct {
    Context *context; /* borrowed: a dying context removes its slots */
    int on_miss;      /* ACTION_RUN: ask translate */
    Py_ssize_t count, capacity;
    Entry **entries;  /* owned, most recently used first */
} Slot;

struct CodeState {
    CodeState *previous, *next;
    PyCodeObject *code; /* borrowed */
    int action;
    uint64_t version;   /* changes whenever an entry goes away or slots move */
    int count;
    Slot *slots;
};

HookStats hook_stats;
static CodeState all_states = {.previous = &all_states, .next = &all_states};
static Py_ssize_t extra_index = -1;
static _PyFrameEvalFunction other_eval = _PyEval_EvalFrameDefault; /* the one before ours */
static Py_ssize_t active_count;

/* An owned reference. The initial-exec model makes reading it one instruction. */
static __thread Context *active __attribute__((tls_model("initial-exec")));
/* Compiled graphs that the innermost call of a compiled callable on this thread has come to. */
__thread uint64_t hook_compiled_runs __attribute__((tls_model("initial-exec")));
bool hook_all_eager = false; /* of all threads; set and read under the interpreter lock */

/* ------------------------------------------------------------------ version differences */

#if PY_VERSION_HEX < 0x030C0000
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_FUNC(f) ((PyObject *)(f)->f_func)
#define FRAME_AT_START(f) ((f)->prev_instr == _PyCode_CODE((f)->f_code) - 1)
#elif PY_VERSION_HEX < 0x030D0000
#define FRAME_CODE(f) ((f)->f_code)
#define FRAME_FUNC(f) ((f)->f_funcobj)
#define FRAME_AT_START(f) ((f)->prev_instr == _PyCode_CODE((f)->f_code) - 1)
#elif PY_VERSION_HEX < 0x030E0000
#define FRAME_CODE(f) ((PyCodeObject *)(f)->f_executable)
#define FRAME_FUNC(f) ((f)->f_funcobj)
#define FRAME_AT_START(f) ((f)->instr_ptr == _PyCode_CODE(FRAME_CODE(f)))
#else /* a frame holds tagged references: the low bit says that it does not own what it refers to */
#define FRAME_CODE(f) ((PyCodeObject *)PyStackRef_AsPyObjectBorrow((f)->f_executable))
#define FRAME_FUNC(f) PyStackRef_AsPyObjectBorrow((f)->f_funcobj)
#define FRAME_AT_START(f) ((f)->instr_ptr == _PyCode_CODE(FRAME_CODE(f)))
#endif

/* Whether a debugger or a line tracer must see every line: a trace function, or (3.12 on) the debugger's place in
 * sys.monitoring. A profiler sees calls, and the compiled code is what it is to see. */
static inline bool
thread_is_traced(PyThreadState *ts)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (ts->interp->monitoring_tool_names[MONITORING_DEBUGGER] != NULL) {
        return true;
    }
#endif
    return ts->c_tracefunc != NULL;
}

bool
hook_is_traced(void)
{
    return thread_is_traced(PyThreadState_Get());
}

/* Runs a frame as without the hook.
 *
 * With any evaluation function a Python call nests on the C stack. Python 3.12 allows 1500 units of such nesting,
 * two a call, which would end a recursion earlier than without the hook; so while the limit on Python calls alone
 * bounds the C stack well enough, they are given back. */
static inline PyObject *
plain_eval(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
    if (ts->py_recursion_limit <= 4000) {
        ts->c_recursion_remaining += 2;
        PyObject *result = other_eval(ts, frame, throwflag);
        ts->c_recursion_remaining -= 2;
        return result;
    }
#endif
    return other_eval(ts, frame, throwflag);
}

/* Ends a frame that never ran, with `result` (stolen; NULL: the exception that is set).
 *
 * On 3.11 the caller of the evaluation function clears the frame. From 3.12 on the evaluation function has to,
 * and the functions for it are private; so the plain evaluator runs the frame with its instruction pointer on
 * a RETURN_VALUE and the result on its stack. An exception is set aside meanwhile, so that the traceback gets
 * no second entry for the user's function. */
static PyObject *
leave_frame(PyThreadState *ts, _PyInterpreterFrame *frame, PyObject *result)
{
#if PY_VERSION_HEX < 0x030C0000
    (void)ts;
    (void)frame;
    return result;
#else
    static _Py_CODEUNIT stub[2]; /* 3.12 wants the place before the instruction */
    stub[1].op.code = RETURN_VALUE;
    PyObject *exception = result == NULL ? PyErr_GetRaisedException() : NULL;
    PyObject *value = result != NULL ? result : Py_NewRef(Py_None);
#if PY_VERSION_HEX < 0x030E0000
    frame->localsplus[frame->stacktop++] = value;
#else
    *frame->stackpointer++ = PyStackRef_FromPyObjectSteal(value);
#endif
#if PY_VERSION_HEX < 0x030D0000
    frame->prev_instr = stub;
#else
    frame->instr_ptr = stub + 1;
#endif
    /* This must work even where the recursion limit was just reached. From 3.14 on the C stack is not counted, but
     * measured: where it ends, this call does, too, with the error of that. */
    ts->py_recursion_remaining += 2;
#if PY_VERSION_HEX < 0x030E0000
    ts->c_recursion_remaining += 2;
#endif
    result = _PyEval_EvalFrameDefault(ts, frame, 0);
    ts->py_recursion_remaining -= 2;
#if PY_VERSION_HEX < 0x030E0000
    ts->c_recursion_remaining -= 2;
#endif
    if (exception != NULL) {
        Py_XDECREF(result);
        PyErr_SetRaisedException(exception);
        return NULL;
    }
    return result;
#endif
}

/* ------------------------------------------------------------------ per-code state */

static void *
get_extra(PyCodeObject *code)
{
    void *extra = NULL;
    if (PyUnstable_Code_GetExtra((PyObject *)code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    return extra;
}

static void
clear_slot(Slot *slot)
{
    Entry **entries = slot->entries;
    Py_ssize_t count = slot->count;
    slot->entries = NULL;
    slot->count = slot->capacity = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        entries[i]->state = NULL;
        entries[i]->valid = false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_DECREF(entries[i]);
    }
    PyMem_Free(entries);
}

static void
clear_state(CodeState *state)
{
    Slot *slots = state->slots;
    int count = state->count;
    state->slots = NULL;
    state->count = 0;
    state->version++;
    for (int i = 0; i < count; i++) {
        clear_slot(&slots[i]);
    }
    PyMem_Free(slots);
}

/* The code object dies. */
static void
free_extra(void *extra)
{
    if (IS_TAG(extra)) {
        return;
    }
    CodeState *state = extra;
    state->previous->next = state->next;
    state->next->previous = state->previous;
    clear_state(state);
    PyMem_Free(state);
}

/* The code's state, made if needed with the action it has now; NULL with an exception. */
static CodeState *
ensure_state(PyCodeObject *code)
{
    void *extra = get_extra(code);
    if (!IS_TAG(extra)) {
        return extra;
    }
    CodeState *state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->code = code;
    state->action = (int)(intptr_t)extra;
    if (PyUnstable_Code_SetExtra((PyObject *)code, extra_index, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    state->previous = &all_states;
    state->next = all_states.next;
    state->next->previous = state;
    all_states.next = state;
    return state;
}

static inline Slot *
find_slot(CodeState *state, Context *context)
{
    for (int i = 0; i < state->count; i++) {
        if (state->slots[i].context == context) {
            return &state->slots[i];
        }
    }
    return NULL;
}

static Slot *
ensure_slot(CodeState *state, Context *context)
{
    Slot *slot = find_slot(state, context);
    if (slot != NULL) {
        return slot;
    }
    Slot *slots = PyMem_Realloc(state->slots, (state->count + 1) * sizeof(Slot));
    if (slots == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->slots = slots;
    state->version++;
    slot = &slots[state->count++];
    memset(slot, 0, sizeof(Slot));
    slot->context = context;
    return slot;
}

static int
insert_entry(CodeState *state, Context *context, Entry *entry)
{
    Slot *slot = ensure_slot(state, context);
    if (slot == NULL) {
        return -1;
    }
    if (slot->count == slot->capacity) {
        Py_ssize_t capacity = slot->capacity ? 2 * slot->capacity : 2;
        Entry **entries = PyMem_Realloc(slot->entries, capacity * sizeof(Entry *));
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        slot->entries = entries;
        slot->capacity = capacity;
    }
    memmove(slot->entries + 1, slot->entries, slot->count * sizeof(Entry *));
    slot->entries[0] = (Entry *)Py_NewRef(entry);
    slot->count++;
    state->version++;
    entry->state = state;
    entry->context = context;
    return 0;
}

static void
move_to_front(Slot *slot, Py_ssize_t i)
{
    Entry *entry = slot->entries[i];
    memmove(slot->entries + 1, slot->entries, i * sizeof(Entry *));
    slot->entries[0] = entry;
}

void
hook_invalidate(Entry *entry)
{
    CodeState *state = entry->state;
    entry->valid = false;
    if (state == NULL) {
        return;
    }
    entry->state = NULL;
    Slot *slot = find_slot(state, entry->context);
    for (Py_ssize_t i = 0; slot != NULL && i < slot->count; i++) {
        if (slot->entries[i] == entry) {
            slot->count--;
            memmove(slot->entries + i, slot->entries + i + 1, (slot->count - i) * sizeof(Entry *));
            state->version++;
            Py_DECREF(entry);
            return;
        }
    }
}

void
hook_forget_context(Context *context)
{
    for (CodeState *state = all_states.next; state != &all_states; state = state->next) {
        Slot *slot = find_slot(state, context);
        if (slot == NULL) {
            continue;
        }
        Slot gone = *slot;
        state->count--;
        *slot = state->slots[state->count];
        state->version++;
        /* Dropping entries may run code that frees states, this one included: start again. */
        clear_slot(&gone);
        state = &all_states;
    }
}

int
hook_mark(PyCodeObject *code, int action)
{
    void *extra = get_extra(code);
    if (!IS_TAG(extra)) {
        ((CodeState *)extra)->action = action;
        return 0;
    }
    if (action != ACTION_TRACE) {
        return PyUnstable_Code_SetExtra((PyObject *)code, extra_index, (void *)(intptr_t)action);
    }
    CodeState *state = ensure_state(code);
    if (state == NULL) {
        return -1;
    }
    state->action = action;
    return 0;
}

int
hook_marked(PyCodeObject *code)
{
    void *extra = get_extra(code);
    return IS_TAG(extra) ? (int)(intptr_t)extra : ((CodeState *)extra)->action;
}

static int
append_slot_entries(PyObject *list, const Slot *slot)
{
    for (Py_ssize_t i = 0; i < slot->count; i++) {
        if (PyList_Append(list, (PyObject *)slot->entries[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

PyObject *
hook_entries(PyCodeObject *code, Context *context)
{
    PyObject *list = PyList_New(0);
    void *extra = get_extra(code);
    if (list == NULL || IS_TAG(extra)) {
        return list;
    }
    CodeState *state = extra;
    for (int i = 0; i < state->count; i++) {
        if ((context == NULL || state->slots[i].context == context)
            && append_slot_entries(list, &state->slots[i]) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

int
hook_reset_code(PyCodeObject *code)
{
    void *extra = get_extra(code);
    if (IS_TAG(extra)) {
        return extra == NULL ? 0 : PyUnstable_Code_SetExtra((PyObject *)code, extra_index, NULL);
    }
    ((CodeState *)extra)->action = ACTION_RUN;
    clear_state(extra);
    return 0;
}

void
hook_reset_all(void)
{
    for (CodeState *state = all_states.next; state != &all_states; state = state->next) {
        state->action = ACTION_RUN;
        if (state->count > 0) {
            clear_state(state); /* may run code: start again */
            state = &all_states;
        }
    }
}

/* ------------------------------------------------------------------ activation */

static PyObject *hook_eval(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag);

/* Python-to-Python calls are cheaper without any evaluation function, so it is there only while wanted. */
static void
install(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (current != hook_eval) {
        other_eval = current;
        _PyInterpreterState_SetEvalFrameFunc(interp, hook_eval);
    }
}

static void
uninstall(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    if (_PyInterpreterState_GetEvalFrameFunc(interp) == hook_eval) {
        _PyInterpreterState_SetEvalFrameFunc(interp, other_eval);
    }
}

Context *
hook_swap_active(Context *context)
{
    Context *previous = active;
    active = context;
    if (context != NULL && previous == NULL) {
        if (active_count++ == 0) {
            install();
        }
    }
    else if (context == NULL && previous != NULL) {
        if (--active_count == 0) {
            uninstall();
        }
    }
    return previous;
}

Context *
hook_active(void)
{
    return active;
}

/* ------------------------------------------------------------------ running */

static inline Py_ssize_t
parameter_count(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
           + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* Whether these are the globals of an imported module. */
static bool
belongs_to_module(PyObject *globals)
{
    PyObject *name = PyDict_GetItemString(globals, "__name__");
    PyObject *module = name != NULL && PyUnicode_Check(name) ? PyImport_GetModule(name) : NULL;
    bool belongs = module != NULL && PyModule_Check(module) && PyModule_GetDict(module) == globals;
    Py_XDECREF(module);
    PyErr_Clear();
    return belongs;
}

/* The entry's code as a function with the frame's globals (new reference). The entry keeps it only for globals
 * of an imported module: others may be meant to die, and a reference from a cache entry would keep them alive
 * (entry -> function -> globals -> the user's function -> its code -> entry, unseen by the collector). */
static PyObject *
entry_function(Entry *entry, PyObject *globals)
{
    if (entry->func != NULL && PyFunction_GET_GLOBALS(entry->func) == globals) {
        return Py_NewRef(entry->func);
    }
    PyObject *func = PyFunction_New((PyObject *)entry->code, globals);
    if (func != NULL && entry->unkept_globals != globals) {
        if (belongs_to_module(globals)) {
            Py_XSETREF(entry->func, Py_NewRef(func));
        }
        else {
            entry->unkept_globals = globals;
        }
    }
    return func;
}

/* Whether code takes so many arguments by position, and no others: as parameters, the last ones perhaps as a tuple. */
static bool
takes_arguments(const PyCodeObject *code, Py_ssize_t n)
{
    bool rest = code->co_flags & CO_VARARGS;
    return (rest ? code->co_argcount <= n : code->co_argcount == n) && code->co_kwonlyargcount == 0
           && !(code->co_flags & CO_VARKEYWORDS);
}

/* Calls the entry's code; args has a free place before it. */
static PyObject *
call_entry(Entry *entry, _PyInterpreterFrame *frame, PyObject **args, Py_ssize_t nargs)
{
    PyObject *func = entry_function(entry, frame->f_globals);
    if (func == NULL) {
        return NULL;
    }
    if (!takes_arguments(entry->code, nargs)) {
        PyErr_Format(PyExc_SystemError, "dynamo_capture: the code cached for %U takes %d arguments, not %zd",
                     FRAME_CODE(frame)->co_qualname, entry->code->co_argcount, nargs);
        Py_DECREF(func);
        return NULL;
    }
    PyFunctionObject *function = (PyFunctionObject *)func;
    if (entry->code->co_nfreevars > 0) {
        /* The callee copies the cells before any other code can run, so one function serves all closures. */
        PyObject *closure = ((PyFunctionObject *)FRAME_FUNC(frame))->func_closure;
        Py_XSETREF(function->func_closure, Py_XNewRef(closure));
    }
    PyObject *result = PyObject_Vectorcall(func, args, (size_t)nargs | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (function->func_closure != NULL) {
        Py_CLEAR(function->func_closure);
    }
    Py_DECREF(func);
    return result;
}

static PyObject *
run_plain(PyThreadState *ts, _PyInterpreterFrame *frame, int action)
{
    if (action != ACTION_SKIP_RECURSIVE) {
        return plain_eval(ts, frame, 0);
    }
    Context *saved = hook_swap_active(NULL);
    PyObject *result = plain_eval(ts, frame, 0);
    Py_XDECREF(hook_swap_active(saved));
    return result;
}

typedef struct {
    PyObject *small[SMALL_STACK];
    PyObject **base; /* base[0] is the free place */
    Py_ssize_t capacity;
} ArgStack;

static int
reserve(ArgStack *stack, Py_ssize_t count)
{
    if (count + 1 <= stack->capacity) {
        return 0;
    }
    PyObject **base = PyMem_Malloc((count + 1) * sizeof(PyObject *));
    if (base == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (stack->base != stack->small) {
        PyMem_Free(stack->base);
    }
    stack->base = base;
    stack->capacity = count + 1;
    return 0;
}

/* Finds the entry whose guards hold: 1 and *found (owned) with its collected values behind the parameters in
 * `stack`, 0 none, -1 exception. The hook is inactive meanwhile. */
static int
find_entry(CodeState *state, Context *context, const GuardSource *source, ArgStack *stack, Entry **found)
{
    Py_ssize_t i = 0;
    for (;;) {
        Slot *slot = find_slot(state, context);
        if (slot == NULL || i >= slot->count) {
            return 0;
        }
        Entry *entry = slot->entries[i];
        GuardTree *guards = entry->guards;
        int holds = 1;
        uint64_t version = state->version;
        Py_INCREF(entry);
        if (guards != NULL) {
            guard_prepare(guards);
            if (reserve(stack, source->nargs + guards->nslots) < 0) {
                holds = -1;
            }
            else {
                active = NULL;
                holds = guard_eval(guards, source, stack->base + 1 + source->nargs, NULL);
                active = context;
            }
        }
        if (holds == 1) {
            if (i > 0 && version == state->version) {
                move_to_front(slot, i);
            }
            *found = entry;
            return 1;
        }
        Py_DECREF(entry);
        if (holds < 0) {
            return -1;
        }
        i = version == state->version ? i + 1 : 0;
    }
}

static PyObject *
make_args_dict(PyCodeObject *code, const GuardSource *source)
{
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict != NULL && i < source->nargs; i++) {
        PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
        if (PyDict_SetItem(dict, name, source->args[i]) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static PyObject *
call_translate(Context *context, PyCodeObject *code, PyObject *func, const GuardSource *source)
{
    PyObject *result = NULL;
    PyObject *closure = source->closure != NULL ? Py_NewRef(source->closure) : PyTuple_New(0);
    PyObject *args = make_args_dict(code, source);
    PyObject *entries = hook_entries(code, context);
    if (args != NULL && closure != NULL && entries != NULL) {
        PyObject *stack[] = {NULL, (PyObject *)code, func, args, source->globals, source->builtins, closure,
                             entries};
        Context *saved = hook_swap_active(NULL);
        result = PyObject_Vectorcall(context->translate, stack + 1, 7 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_XDECREF(hook_swap_active(saved));
    }
    Py_XDECREF(args);
    Py_XDECREF(closure);
    Py_XDECREF(entries);
    return result;
}

static int
check_entry_code(PyCodeObject *original, Entry *entry)
{
    PyCodeObject *code = entry->code;
    Py_ssize_t expected = parameter_count(original) + (entry->guards != NULL ? entry->guards->ncollect : 0);
    if (!takes_arguments(code, expected)) {
        PyErr_Format(PyExc_ValueError,
                     "the code of the entry for %U must take exactly %zd arguments, by position",
                     original->co_qualname, expected);
        return -1;
    }
    if (code->co_nfreevars != 0 && code->co_nfreevars != original->co_nfreevars) {
        PyErr_Format(PyExc_ValueError, "the code of the entry for %U has %d free variables, the original %d",
                     original->co_qualname, code->co_nfreevars, original->co_nfreevars);
        return -1;
    }
    if (entry->state != NULL) {
        PyErr_Format(PyExc_ValueError, "the entry for %U is cached already", original->co_qualname);
        return -1;
    }
    return 0;
}

/* Reads the entry's collected values once, without evaluating the guards' checks twice at run time: the new
 * entry is used for the very values it was made from. -1 exception, 0 a collected value is gone, 1 fine. */
static int
collect_for_new(Entry *entry, const GuardSource *source, ArgStack *stack)
{
    GuardTree *guards = entry->guards;
    if (guards == NULL || guards->ncollect == 0) {
        return 1;
    }
    guard_prepare(guards);
    if (reserve(stack, source->nargs + guards->nslots) < 0) {
        return -1;
    }
    active = NULL;
    return guard_eval(guards, source, stack->base + 1 + source->nargs, NULL);
}

static PyObject *
run_entry(PyThreadState *ts, _PyInterpreterFrame *frame, Entry *entry, const GuardSource *source,
          ArgStack *stack)
{
    Py_ssize_t ncollect = entry->guards != NULL ? entry->guards->ncollect : 0;
    Py_ssize_t nargs = source->nargs + ncollect;
    PyObject *result = NULL;
    entry->hits++;
    hook_compiled_runs += entry->compiled;
    if (reserve(stack, nargs) == 0) { /* has happened already if anything was collected */
        memcpy(stack->base + 1, source->args, source->nargs * sizeof(PyObject *));
        result = call_entry(entry, frame, stack->base + 1, nargs);
    }
    for (Py_ssize_t i = 0; i < ncollect; i++) {
        Py_DECREF(stack->base[1 + source->nargs + i]);
    }
    return leave_frame(ts, frame, result);
}

/* Sets *again and returns NULL without an exception when the answer is to look for an entry once more. */
static PyObject *
translate_and_run(PyThreadState *ts, _PyInterpreterFrame *frame, CodeState *state, Context *context,
                  const GuardSource *source, ArgStack *stack, bool *again)
{
    PyCodeObject *code = FRAME_CODE(frame);
    hook_stats.translations++;
    PyObject *answer = call_translate(context, code, FRAME_FUNC(frame), source);
    if (answer == NULL) {
        return leave_frame(ts, frame, NULL);
    }
    if (Py_IS_TYPE(answer, &Entry_Type)) {
        Entry *entry = (Entry *)answer;
        int ready = check_entry_code(code, entry);
        if (ready == 0 && entry->valid && (ready = insert_entry(state, context, entry)) == 0) {
            ready = collect_for_new(entry, source, stack);
            active = context;
        }
        PyObject *result = ready > 0    ? run_entry(ts, frame, entry, source, stack)
                           : ready == 0 ? plain_eval(ts, frame, 0)
                                        : leave_frame(ts, frame, NULL);
        Py_DECREF(answer);
        return result;
    }
    long action = PyLong_Check(answer) ? PyLong_AsLong(answer) : -1;
    if (action < ACTION_RUN || action > ACTION_LEAVE) {
        PyErr_Format(PyExc_TypeError,
                     "translate must return an Entry, RUN, SKIP, SKIP_RECURSIVE, TRACE or LEAVE, not %R", answer);
        Py_DECREF(answer);
        return leave_frame(ts, frame, NULL);
    }
    Py_DECREF(answer);
    if (action == ACTION_TRACE) {
        *again = true;
        return NULL;
    }
    if (action == ACTION_LEAVE) {
        return run_plain(ts, frame, ACTION_SKIP_RECURSIVE);
    }
    if (action != ACTION_RUN) {
        Slot *slot = ensure_slot(state, context);
        if (slot == NULL) {
            return leave_frame(ts, frame, NULL);
        }
        slot->on_miss = (int)action;
    }
    return run_plain(ts, frame, (int)action);
}

/* A frame's parameters as plain borrowed references. */
#if PY_VERSION_HEX < 0x030E0000
typedef struct {
    PyObject **items;
} FrameArgs;

static inline int
open_args(FrameArgs *args, _PyInterpreterFrame *frame, Py_ssize_t count)
{
    (void)count;
    args->items = frame->localsplus;
    return 0;
}

#define close_args(args) ((void)(args))
#else
typedef struct {
    PyObject **items;
    PyObject *small[SMALL_STACK];
} FrameArgs;

static inline int
open_args(FrameArgs *args, _PyInterpreterFrame *frame, Py_ssize_t count)
{
    args->items = args->small;
    if (count > SMALL_STACK && (args->items = PyMem_Malloc(count * sizeof(PyObject *))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        args->items[i] = PyStackRef_AsPyObjectBorrow(frame->localsplus[i]);
    }
    return 0;
}

static inline void
close_args(FrameArgs *args)
{
    if (args->items != args->small) {
        PyMem_Free(args->items);
    }
}
#endif

static PyObject *
run_traced(PyThreadState *ts, _PyInterpreterFrame *frame, CodeState *state, Context *context)
{
    PyCodeObject *code = FRAME_CODE(frame);
    ArgStack stack;
    stack.base = stack.small;
    stack.capacity = SMALL_STACK;
    FrameArgs args;
    if (open_args(&args, frame, parameter_count(code)) < 0) {
        return leave_frame(ts, frame, NULL);
    }
    GuardSource source = {args.items, parameter_count(code), frame->f_globals, frame->f_builtins,
                          ((PyFunctionObject *)FRAME_FUNC(frame))->func_closure};
    PyObject *result;
    bool again;
    do {
        again = false;
        Entry *entry = NULL;
        int found = find_entry(state, context, &source, &stack, &entry);
        if (found > 0) {
            hook_stats.hits++;
            result = run_entry(ts, frame, entry, &source, &stack);
            Py_DECREF(entry);
        }
        else if (found < 0) {
            result = leave_frame(ts, frame, NULL);
        }
        else {
            hook_stats.misses++;
            Slot *slot = find_slot(state, context);
            if (slot != NULL && slot->on_miss != ACTION_RUN) {
                result = run_plain(ts, frame, slot->on_miss);
            }
            else {
                result = translate_and_run(ts, frame, state, context, &source, &stack, &again);
            }
        }
    } while (again);
    if (stack.base != stack.small) {
        PyMem_Free(stack.base);
    }
    close_args(&args);
    return result;
}

/* Asks the filter: the action, or -1 with an exception. */
static int
ask_filter(Context *context, PyCodeObject *code, PyObject *globals)
{
    const int generator = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE;
    if ((code->co_flags & generator) || !(code->co_flags & CO_OPTIMIZED) || !(code->co_flags & CO_NEWLOCALS)) {
        return hook_mark(code, ACTION_SKIP) < 0 ? -1 : ACTION_SKIP;
    }
    PyObject *stack[] = {NULL, (PyObject *)code, globals};
    Context *saved = hook_swap_active(NULL);
    PyObject *answer = PyObject_Vectorcall(context->filter, stack + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(hook_swap_active(saved));
    if (answer == NULL) {
        return -1;
    }
    long action = PyLong_Check(answer) ? PyLong_AsLong(answer) : -1;
    if (action < ACTION_RUN || action > ACTION_TRACE) {
        PyErr_Format(PyExc_TypeError, "filter must return RUN, SKIP, SKIP_RECURSIVE or TRACE, not %R", answer);
        Py_DECREF(answer);
        return -1;
    }
    Py_DECREF(answer);
    if (action != ACTION_RUN && hook_mark(code, (int)action) < 0) {
        return -1;
    }
    return (int)action;
}

static PyObject *
hook_frame(PyThreadState *ts, _PyInterpreterFrame *frame, void *extra)
{
    PyCodeObject *code = FRAME_CODE(frame);
    /* `active` may change while callbacks run; this frame belongs to the context it started with. */
    Context *context = (Context *)Py_NewRef(active);
    int action = IS_TAG(extra) ? (int)(intptr_t)extra : ((CodeState *)extra)->action;
    PyObject *result;
    hook_stats.frames++;
    if (ts->tracing) { /* the trace or profile function itself, and what it calls */
        result = run_plain(ts, frame, ACTION_SKIP_RECURSIVE);
        Py_DECREF(context);
        return result;
    }
    if (thread_is_traced(ts) || !FRAME_AT_START(frame)) {
        result = run_plain(ts, frame, action == ACTION_SKIP_RECURSIVE ? action : ACTION_RUN);
        Py_DECREF(context);
        return result;
    }
    if (action == ACTION_RUN) {
        action = ask_filter(context, code, frame->f_globals);
    }
    if (action == ACTION_TRACE) {
        CodeState *state = ensure_state(code);
        result = state != NULL ? run_traced(ts, frame, state, context) : leave_frame(ts, frame, NULL);
    }
    else if (action < 0) {
        result = leave_frame(ts, frame, NULL);
    }
    else {
        result = run_plain(ts, frame, action);
    }
    Py_DECREF(context);
    return result;
}

static PyObject *
hook_eval(PyThreadState *ts, _PyInterpreterFrame *frame, int throwflag)
{
    if (active == NULL || throwflag) {
        return plain_eval(ts, frame, throwflag);
    }
    void *extra = get_extra(FRAME_CODE(frame));
    if (extra == TAG_SKIP) {
        return plain_eval(ts, frame, throwflag);
    }
    return hook_frame(ts, frame, extra);
}

int
hook_init(void)
{
    if (extra_index < 0) {
        extra_index = PyUnstable_Eval_RequestCodeExtraIndex(free_extra);
        if (extra_index < 0) {
            PyErr_SetString(PyExc_RuntimeError, "dynamo_capture: no free extra slot in code objects");
            return -1;
        }
    }
    return 0;
}
