/* What a tensor guard wants, and in what a tensor differs from it, in words. */
#include "tensor.h"

PyObject *
tensor_dims_text(int64_t ndim, const int64_t *values)
{
    PyObject *list = PyList_New(ndim);
    for (int64_t i = 0; list != NULL && i < ndim; i++) {
        PyObject *item = values[i] < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(values[i]);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, item);
    }
    return list;
}

PyObject *
tensor_meta_text(const TensorMeta *meta)
{
    PyObject *sizes = tensor_dims_text(meta->ndim, meta->sizes);
    PyObject *strides = tensor_dims_text(meta->ndim, meta->strides);
    PyObject *text = NULL;
    if (sizes != NULL && strides != NULL) {
        text = PyUnicode_FromFormat("%s(size=%R, stride=%R%s, dtype=%S, device=%S, requires_grad=%s)",
                                    meta->type->tp_name, sizes, strides, meta->contiguous ? ", contiguous" : "",
                                    meta->dtype, meta->device, meta->requires_grad ? "True" : "False");
    }
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    return text;
}

/* Appends "what was, now is" to a list of strings. */
static int
add_difference(PyObject *parts, const char *what, PyObject *was, PyObject *is)
{
    PyObject *text = was != NULL && is != NULL ? PyUnicode_FromFormat("%s %S, now %S", what, was, is) : NULL;
    Py_XDECREF(was);
    Py_XDECREF(is);
    int status = text == NULL ? -1 : PyList_Append(parts, text);
    Py_XDECREF(text);
    return status;
}

static int
add_flag_difference(PyObject *parts, const char *what, int was, int is)
{
    return was == is ? 0 : add_difference(parts, what, PyBool_FromLong(was), PyBool_FromLong(is));
}

static bool
dims_differ(const TensorMeta *meta, const int64_t *wanted, const int64_t *found, int64_t least)
{
    for (int64_t i = 0; i < meta->ndim; i++) {
        if (wanted[i] >= 0 ? wanted[i] != found[i] : found[i] < least) {
            return true;
        }
    }
    return false;
}

static int
add_layout_differences(PyObject *parts, const TensorMeta *meta, const TensorMeta *now)
{
    if (meta->ndim != now->ndim || dims_differ(meta, meta->sizes, now->sizes, meta->min_size)) {
        return add_difference(parts, "size", tensor_dims_text(meta->ndim, meta->sizes), tensor_dims_text(now->ndim, now->sizes));
    }
    if (meta->has_strides != now->has_strides || !meta->has_strides) {
        return 0; /* another layout, which is among the attributes */
    }
    if (meta->contiguous && !tensor_contiguous(now->ndim, now->sizes, now->strides)) {
        return add_difference(parts, "stride", PyUnicode_FromString("of contiguous memory"),
                              tensor_dims_text(now->ndim, now->strides));
    }
    if (dims_differ(meta, meta->strides, now->strides, INT64_MIN)) {
        return add_difference(parts, "stride", tensor_dims_text(meta->ndim, meta->strides),
                              tensor_dims_text(now->ndim, now->strides));
    }
    if (meta->check_offset && meta->offset != now->offset) {
        return add_difference(parts, "offset in its storage", PyLong_FromLongLong(meta->offset),
                              PyLong_FromLongLong(now->offset));
    }
    return 0;
}

static int
add_differences(PyObject *parts, const TensorMeta *meta, const TensorMeta *now)
{
    if (meta->type != now->type
        && add_difference(parts, "type", PyUnicode_FromString(meta->type->tp_name),
                          PyUnicode_FromString(now->type->tp_name)) < 0) {
        return -1;
    }
    const char *names[] = {"dtype", "device", "layout"};
    PyObject *was[] = {meta->dtype, meta->device, meta->layout}, *is[] = {now->dtype, now->device, now->layout};
    for (int i = 0; i < 3; i++) {
        int same = PyObject_RichCompareBool(was[i], is[i], Py_EQ);
        if (same < 0 || (!same && add_difference(parts, names[i], Py_NewRef(was[i]), Py_NewRef(is[i])) < 0)) {
            return -1;
        }
    }
    return add_layout_differences(parts, meta, now) < 0
                   || add_flag_difference(parts, "requires_grad", meta->requires_grad, now->requires_grad) < 0
                   || add_flag_difference(parts, "conjugate", meta->is_conj, now->is_conj) < 0
                   || add_flag_difference(parts, "negative", meta->is_neg, now->is_neg) < 0
                   || add_flag_difference(parts, "inference tensor", meta->is_inference, now->is_inference) < 0
               ? -1
               : 0;
}

/* The attributes of a tensor that is like another one in what they are made of; "another" where it is not. */
static void
take_attributes(TensorMeta *now, const TensorMeta *meta)
{
    bool same_device = now->device_type == meta->device_type && now->device_index == meta->device_index;
    now->dtype = now->scalar_type == meta->scalar_type ? Py_NewRef(meta->dtype) : PyUnicode_FromString("another");
    now->device = same_device ? Py_NewRef(meta->device) : PyUnicode_FromString("another");
    now->layout = Py_NewRef(meta->layout);
    now->is_conj = meta->is_conj;
    now->is_neg = meta->is_neg;
    now->is_inference = meta->is_inference;
}

PyObject *
tensor_difference(const TensorMeta *meta, PyObject *value)
{
    if (!tensor_is(value)) {
        return NULL;
    }
    PyObject *none = Py_NewRef(Py_None), *text = NULL, *parts = PyList_New(0);
    bool stored = meta->stored && meta->native && Py_TYPE(value) == meta->type;
    TensorMeta *now = tensor_meta_new(value, none, none, 0, none, true, stored ? STORED_UNASKED : NOT_STORED);
    if (now != NULL && stored) {
        take_attributes(now, meta);
    }
    if (now != NULL && parts != NULL && add_differences(parts, meta, now) == 0) {
        PyObject *comma = PyUnicode_FromString("; ");
        text = PyList_GET_SIZE(parts) == 0
                   ? PyUnicode_FromString("another kind of tensor (of a mode or transform)")
                   : comma != NULL ? PyUnicode_Join(comma, parts) : NULL;
        Py_XDECREF(comma);
    }
    tensor_meta_free(now);
    Py_XDECREF(parts);
    Py_DECREF(none);
    PyErr_Clear();
    return text;
}

/* Of a value that a tensor check refused; NULL without an exception if it is no tensor. */
PyObject *
tensor_describe(PyObject *value)
{
    if (!tensor_is(value)) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *none = Py_NewRef(Py_None), *text = NULL;
    TensorMeta *meta = tensor_meta_new(value, none, none, 0, none, true, NOT_STORED);
    if (meta != NULL) {
        text = tensor_meta_text(meta);
        tensor_meta_free(meta);
    }
    Py_DECREF(none);
    PyErr_Clear();
    return text;
}
