/* What tensor.c and tensor_text.c share. */
#ifndef QUINTET_TENSOR_H
#define QUINTET_TENSOR_H
#include "capture.h"

struct TensorMeta {
    PyTypeObject *type; /* owned */
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

bool tensor_contiguous(int64_t ndim, const int64_t *sizes, const int64_t *strides);
/* Sizes or strides as a list, with None for those that may be any. */
PyObject *tensor_dims_text(int64_t ndim, const int64_t *values);

#endif
