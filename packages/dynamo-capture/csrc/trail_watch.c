/* Numbers of dicts, by which a trail knows that they have not changed. */
#include "trail.h"

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
    PyInterpreterState *interpreter; /* whose number that is */
    Watched *table; /* open-addressed; a removed entry keeps its stamp, with the dict NULL */
    size_t size, used;
    uint64_t **spare; /* stamps without a dict */
    size_t nspare;
} watch = {.watcher = -1};
uint64_t trail_last_event;

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
            *place->stamp = ++trail_last_event;
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

const uint64_t *
trail_dict_number(PyObject *dict)
{
    if (watch.watcher < 0) {
        watch.interpreter = PyInterpreterState_Get();
        watch.watcher = PyDict_AddWatcher(on_dict_event);
    }
    if (watch.watcher < 0 || watch.interpreter != PyInterpreterState_Get()) {
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
        *place->stamp = ++trail_last_event;
        watch.used++;
    }
    return place->stamp;
}
#else /* WATCHED */
/* The dict's own version, unlike any that a dict had before (PEP 509). */
const uint64_t *
trail_dict_number(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag;
}
#endif
