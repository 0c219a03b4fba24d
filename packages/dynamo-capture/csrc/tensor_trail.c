/* Tensors that passed a check, as memory that has not changed, and where in memory that can be seen. */
#include "tensor.h"
#include <stdlib.h>

#define INLINE_DIMS 5 /* a TensorImpl with more keeps them elsewhere */

/* The words from the shape to the key set are compared as four groups, of which the last two may overlap. */
static inline int
last_group(void)
{
    return torch.keys_word - 3;
}

/* The number of a picture like this one; -1: no memory. A model has few, as its parameters have few shapes. */
static int
picture_of(TensorTrails *trails, const Picture *picture)
{
    const int searched = 64;
    for (int i = trails->npictures - 1; i >= 0 && i >= trails->npictures - searched; i--) {
        if (memcmp(&trails->pictures[i], picture, sizeof(Picture)) == 0) {
            return i;
        }
    }
    Picture *pictures = trails->pictures;
    if (!(trails->npictures & (trails->npictures - 1))) { /* a power of two: as many more */
        pictures = PyMem_Realloc(pictures, (trails->npictures ? 2 * trails->npictures : 1) * sizeof(Picture));
    }
    if (pictures == NULL) {
        return -1;
    }
    trails->pictures = pictures;
    memcpy(&pictures[trails->npictures], picture, sizeof(Picture));
    return trails->npictures++;
}

/* What autograd keeps of a tensor, where it says by itself that the tensor was marked. */
static const uint8_t *
marked_by(const uint64_t *impl)
{
    const uint8_t *kept = torch.autograd_word != 0 ? (const uint8_t *)impl[torch.autograd_word] : NULL;
    return kept != NULL && kept[torch.marked_byte] ? kept : NULL;
}

int
tensor_trail_record(const TensorMeta *meta, PyObject *value, TensorTrails *trails)
{
    if (tensor_meta_check(meta, value) != 1) {
        PyErr_Clear();
        return -1;
    }
    if (!meta->native || torch.window < 0 || torch.impl_requires_grad == NULL || meta->ndim > INLINE_DIMS) {
        return 0;
    }
    if (trails->count == trails->capacity) {
        int capacity = trails->capacity ? 2 * trails->capacity : 16;
        TensorTrail *items = PyMem_Realloc(trails->items, capacity * sizeof(TensorTrail));
        if (items == NULL) {
            return 0;
        }
        trails->items = items;
        trails->capacity = capacity;
    }
    const uint64_t *impl = *(uint64_t **)handle_of(value);
    Picture picture;
    memset(&picture, 0, sizeof picture); /* compared whole */
    memcpy(picture.words, impl + torch.window, 3 * sizeof picture.last);
    memcpy(picture.last, impl + last_group(), sizeof picture.last);
    picture.type = Py_TYPE(value);
    picture.requires_grad = meta->requires_grad;
    picture.elsewhere = meta->device_type != 0;
    picture.device_index = meta->device_index;
    int number = picture_of(trails, &picture);
    if (number < 0) {
        return 0;
    }
    trails->items[trails->count++] = (TensorTrail){value, impl + torch.window, marked_by(impl), number, -1};
    return 1;
}

void
tensor_trails_free(TensorTrails *trails)
{
    PyMem_Free(trails->items);
    PyMem_Free(trails->pictures);
    *trails = (TensorTrails){0};
}

typedef struct {
    int handle; /* where an object refers to its TensorImpl, in bytes */
    int start;  /* the first word of the window in a TensorImpl */
    int last;   /* from there to its last four */
    int autograd, marked;
} Places;

#define TENSOR_AHEAD 8 /* tensors for whose memory is asked before it is their turn: it comes from the second cache */

static inline void
ask_for(const TensorTrail *trail, Places places)
{
    __builtin_prefetch(trail->tensor);
    __builtin_prefetch(trail->window - places.start + places.autograd);
    __builtin_prefetch(trail->window + places.last / 2);
    __builtin_prefetch(trail->window + places.last + 3);
    __builtin_prefetch(trail->kept + places.marked);
}

typedef uint64_t Quad __attribute__((vector_size(32), aligned(8), may_alias));

/* The first tensor with this picture, from `trail` on, that is another now, or `end`; others follow up to `last`. */
static inline __attribute__((always_inline)) const TensorTrail *
first_unlike(const Picture *picture, const TensorTrail *trail, const TensorTrail *end, const TensorTrail *last,
             Places places, PyObject **slots)
{
    const PyTypeObject *type = picture->type;
    const Quad *then = (const Quad *)picture->words;
    const Quad a = then[0], b = then[1], c = then[2], d = *(const Quad *)picture->last;
    for (; trail < end; trail++) {
        const uint64_t *impl = trail->window - places.start;
        const Quad *now = (const Quad *)trail->window;
        if (trail + TENSOR_AHEAD < last) {
            ask_for(trail + TENSOR_AHEAD, places);
        }
        if (Py_TYPE(trail->tensor) != type || *(const uint64_t **)((char *)trail->tensor + places.handle) != impl) {
            break;
        }
        Quad differ = (now[0] ^ a) | (now[1] ^ b) | (now[2] ^ c) | (*(const Quad *)(trail->window + places.last) ^ d);
        if ((differ[0] | differ[1] | differ[2] | differ[3]) != 0) {
            break;
        }
        bool marked = trail->kept != NULL && impl[places.autograd] == (uintptr_t)trail->kept
                      && trail->kept[places.marked];
        if ((marked || impl_requires_grad(impl)) != picture->requires_grad) {
            break;
        }
        int32_t index; /* the CPU has one only */
        if (picture->elsewhere
            && (torch.get_device_index(handle_of(trail->tensor), &index) != 0 || index != picture->device_index)) {
            break;
        }
        if (trail->slot >= 0) { /* here, where its header is at hand */
            slots[trail->slot] = Py_NewRef(trail->tensor);
        }
    }
    return trail;
}

static const TensorTrail *
first_unlike_baseline(const Picture *picture, const TensorTrail *trail, const TensorTrail *end, const TensorTrail *last,
                      Places places, PyObject **slots)
{
    return first_unlike(picture, trail, end, last, places, slots);
}

__attribute__((target("avx2"))) static const TensorTrail *
first_unlike_avx2(const Picture *picture, const TensorTrail *trail, const TensorTrail *end, const TensorTrail *last,
                  Places places, PyObject **slots)
{
    return first_unlike(picture, trail, end, last, places, slots);
}

static int
by_picture(const void *a, const void *b)
{
    return ((const TensorTrail *)a)->picture - ((const TensorTrail *)b)->picture;
}

void
tensor_trails_finish(TensorTrails *trails)
{
    if (trails->count > 0) {
        qsort(trails->items, trails->count, sizeof(TensorTrail), by_picture);
    }
    for (int i = 0; i < trails->count; i++) {
        trails->pictures[trails->items[i].picture].end = i + 1;
    }
}

bool
tensor_trails_hold(const TensorTrails *trails, PyObject **slots)
{
    if (!torch.native_tensor && trails->count > 0) {
        return false;
    }
    const Places places = {torch.handle_offset, torch.window, last_group() - torch.window, torch.autograd_word,
                           torch.marked_byte};
    const bool avx2 = __builtin_cpu_supports("avx2");
    const TensorTrail *trail = trails->items, *end = trail + trails->count;
    for (const Picture *picture = trails->pictures; trail < end; picture++) {
        const TensorTrail *group = trails->items + picture->end;
        trail = (avx2 ? first_unlike_avx2 : first_unlike_baseline)(picture, trail, group, end, places, slots);
        if (trail < group) {
            break;
        }
    }
    if (trail == end) {
        return true;
    }
    while (trail-- > trails->items) {
        if (trail->slot >= 0) {
            Py_CLEAR(slots[trail->slot]);
        }
    }
    return false;
}

/* ------------------------------------------------------------------ where it is */

static uint64_t *
probe_impl(PyObject *probes, Py_ssize_t i)
{
    return *(uint64_t **)handle_of(PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, i), 0));
}

static bool
shape_begins_at(PyObject *probes, int word)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(probes); i++) {
        TensorShape shape;
        const uint64_t *impl = probe_impl(probes, i);
        if (tensor_shape_native(PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, i), 0), &shape) < 0
            || shape.ndim > INLINE_DIMS
            || impl[word] != (uint64_t)shape.ndim || shape.sizes != (int64_t *)impl + word + 1
            || shape.strides != shape.sizes + INLINE_DIMS) {
            return false;
        }
    }
    return true;
}

/* Whether two probes that are not alike in what guards compare differ between the shape and the key set. */
static bool
window_tells(PyObject *probes, Py_ssize_t a, Py_ssize_t b)
{
    TensorShape one, other;
    TensorMeta first, second;
    PyObject *x = PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, a), 0);
    PyObject *y = PyTuple_GET_ITEM(PyTuple_GET_ITEM(probes, b), 0);
    if (tensor_shape_native(x, &one) < 0 || tensor_shape_native(y, &other) < 0 || tensor_meta_native(x, &first) < 0
        || tensor_meta_native(y, &second) < 0) {
        return false;
    }
    size_t bytes = one.ndim * sizeof(int64_t);
    bool alike = one.ndim == other.ndim && one.offset == other.offset && memcmp(one.sizes, other.sizes, bytes) == 0
                 && memcmp(one.strides, other.strides, bytes) == 0 && first.scalar_type == second.scalar_type
                 && first.keys == second.keys;
    size_t window = (torch.keys_word + 1 - torch.window) * sizeof(uint64_t);
    return alike || memcmp(probe_impl(probes, a) + torch.window, probe_impl(probes, b) + torch.window, window) != 0;
}

/* The part of a TensorImpl that changes whenever sizes, strides, offset, element type or keys do; -1: unknown. */
int
tensor_find_window(PyObject *probes)
{
    torch.impl_requires_grad = tensor_symbol("_ZNK3c1010TensorImpl13requires_gradEv");
    torch.window = 0;
    while (torch.window < torch.keys_word && !shape_begins_at(probes, torch.window)) {
        torch.window++;
    }
    int words = torch.keys_word + 1 - torch.window;
    bool tells = torch.window > 0 && words >= 12 && words <= 16;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(probes); i++) {
        for (Py_ssize_t j = 0; tells && j < i; j++) {
            tells = window_tells(probes, i, j);
        }
    }
    return tells ? torch.window : -1;
}


#define AUTOGRAD_BYTES 160 /* searched; what autograd keeps of a tensor is larger in every supported version */

static const uint64_t *
impl_of(PyObject *tensors, int i)
{
    return *(const uint64_t **)handle_of(PyTuple_GET_ITEM(tensors, i));
}

static bool
autograd_agrees(const uint64_t *impl)
{
    return impl_requires_grad(impl) == torch.impl_requires_grad(impl);
}

/* The byte in which a tensor differs after its `requires_grad` has been changed; 0: there is no such one byte. */
static int
find_marked_byte(PyObject *marked, const uint8_t *kept)
{
    uint8_t before[AUTOGRAD_BYTES];
    memcpy(before, kept, sizeof before);
    if (PyObject_SetAttr(marked, str_requires_grad, Py_False) < 0) {
        return 0;
    }
    int byte = 0, differ = 0;
    for (int i = 0; i < AUTOGRAD_BYTES; i++) {
        if (kept[i] != before[i]) {
            byte = i;
            differ++;
        }
    }
    return differ == 1 && before[byte] == 1 && kept[byte] == 0 ? byte : 0;
}

/* The word that is something else once what the tensor holds has been computed from `marked`; 0: there is none. */
static int
find_computed_word(PyObject *back, PyObject *marked, const uint64_t *kept)
{
    uint64_t before[AUTOGRAD_BYTES / 8];
    memcpy(before, kept, sizeof before);
    PyObject *same = PyObject_CallMethod(back, "add_", "O", marked);
    Py_XDECREF(same);
    for (int i = 1; same != NULL && i < AUTOGRAD_BYTES / 8; i++) {
        if (kept[i] != before[i]) {
            return before[i] == 0 ? i : 0;
        }
    }
    return 0;
}

/* `autograd`: a tensor that autograd keeps nothing of, one whose `requires_grad` has been set, one of which it has been
 * set back; the last two are changed. */
void
tensor_find_autograd(PyObject *probes, PyObject *autograd)
{
    torch.autograd_word = 0;
    if (torch.window < 0 || torch.impl_requires_grad == NULL || PyTuple_GET_SIZE(autograd) != 3) {
        return;
    }
    const uint64_t *without = impl_of(autograd, 0), *marked = impl_of(autograd, 1), *back = impl_of(autograd, 2);
    int word = 0, found = 0;
    for (int i = 1; i < torch.window; i++) { /* behind the table of its methods */
        if (without[i] == 0 && marked[i] != 0 && back[i] != 0) {
            word = i;
            found++;
        }
    }
    if (found != 1) {
        return;
    }
    int source = find_computed_word(PyTuple_GET_ITEM(autograd, 2), PyTuple_GET_ITEM(autograd, 1),
                                    (const uint64_t *)back[word]);
    int byte = find_marked_byte(PyTuple_GET_ITEM(autograd, 1), (const uint8_t *)marked[word]);
    if (byte == 0 || source == 0 || source == byte / 8) {
        PyErr_Clear();
        return;
    }
    torch.marked_byte = byte;
    torch.computed_word = source;
    torch.autograd_word = word;
    bool agrees = true;
    for (int i = 0; i < 3; i++) {
        agrees &= autograd_agrees(impl_of(autograd, i));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(probes); i++) {
        agrees &= autograd_agrees(probe_impl(probes, i));
    }
    torch.autograd_word = agrees ? word : 0;
}
