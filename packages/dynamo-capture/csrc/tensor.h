/* What tensor.c, tensor_trail.c and tensor_text.c share. */
#ifndef QUINTET_TENSOR_H
#define QUINTET_TENSOR_H
#include "capture.h"

#define MAX_PLAIN_TYPES 8
#define MAX_LIBRARIES 8

typedef int32_t (*read_i32)(void *, int32_t *);
typedef int32_t (*read_i64)(void *, int64_t *);
typedef int32_t (*read_i64s)(void *, int64_t **);

/* What is known of this torch. */
struct TorchFacts {
    bool ready, native_tensor, native_state;
    PyObject *tensor_type;
    PyTypeObject *plain_types[MAX_PLAIN_TYPES];
    int plain_count;
    int handle_offset, keys_word; /* -1: unknown */
    int window; /* the word of the TensorImpl from which on, up to the key set, all that is guarded is; -1: unknown */
    bool (*impl_requires_grad)(const void *);
    /* Where that function looks: the word of the TensorImpl that is NULL or points to what autograd keeps of a tensor,
     * a byte in that (the tensor was marked) and a word (what computed it); 0: unknown. */
    int autograd_word, marked_byte, computed_word;
    read_i64 get_dim, get_offset;
    read_i64s get_sizes, get_strides;
    read_i32 get_dtype, get_device_type, get_device_index;
    int32_t (*get_data_ptr)(void *, void **);
    size_t (*element_size)(int32_t);
    getter requires_grad; /* the C getter of the attribute */
    void *requires_grad_closure;
    void *libraries[MAX_LIBRARIES];
    int library_count;
    PyObject *state_names, *state_readers; /* tuples */
    bool (*grad_enabled)(void);
    bool (*inference_enabled)(void);
    int64_t (*function_stack_len)(void);
    int (*function_disabled)(void);
    void *(*global_context)(void);
    bool (*deterministic)(void *);
    bool (*deterministic_warn)(void *);
    int (*default_dtype)(void);
    int (*autocast_dtype)(int);
    bool (*autocast_cache)(void);
};
extern struct TorchFacts torch;
extern PyObject *str_requires_grad;

static inline void *
handle_of(PyObject *tensor)
{
    return (char *)tensor + torch.handle_offset;
}

struct TensorMeta {
    PyTypeObject *type; /* owned */
    bool stored; /* of a subclass, which is not asked */
    bool native;        /* which of the two groups below is used */
    bool contiguous, requires_grad, check_offset, has_strides;
    int32_t scalar_type, device_type, device_index;
    uint64_t keys;
    PyObject *dtype, *device, *layout;
    int is_conj, is_neg, is_inference;
    int64_t offset, min_size;
    int64_t ndim;
    int64_t *sizes, *strides; /* -1: unchecked */
};

void *tensor_symbol(const char *name);
int tensor_shape_native(PyObject *tensor, TensorShape *out);
int tensor_meta_native(PyObject *tensor, TensorMeta *out);
/* tensor_trail.c */
int tensor_find_window(PyObject *probes);
void tensor_find_autograd(PyObject *probes, PyObject *autograd);

/* What `requires_grad` says of the tensor that a TensorImpl belongs to. */
static inline bool
impl_requires_grad(const uint64_t *impl)
{
    if (torch.autograd_word == 0) {
        return torch.impl_requires_grad(impl);
    }
    const uint64_t *kept = (const uint64_t *)impl[torch.autograd_word];
    return kept != NULL && (((const uint8_t *)kept)[torch.marked_byte] || kept[torch.computed_word]);
}

bool tensor_contiguous(int64_t ndim, const int64_t *sizes, const int64_t *strides);
/* Sizes or strides as a list, with None for those that may be any. */
PyObject *tensor_dims_text(int64_t ndim, const int64_t *values);

#endif
