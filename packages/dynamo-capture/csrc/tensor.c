/* Tensor metadata and torch's global state, read without linking to torch.
 *
 * The fast path calls plain C functions of libtorch_cpu (`aoti_torch_*`) found by dlsym, whose handle is the
 * address of the at::Tensor inside the Python object, and reads the dispatch key set out of the TensorImpl.
 * `init_torch` compares it with what Python says about probe tensors; where they disagree, or a function is
 * missing, attributes are read instead. The fast path is used for plain tensor types only: a subclass may answer
 * for itself.
 */
#include "tensor.h"
#include <dlfcn.h>

#define TENSOR_IMPL_WORDS 23 /* searched for the key set; every supported TensorImpl is larger */

struct TorchFacts torch = {.handle_offset = -1, .keys_word = -1, .window = -1};

static PyObject *str_shape, *str_stride, *str_storage_offset, *str_dtype, *str_device, *str_layout;
static PyObject *str_data_ptr, *str_element_size;
PyObject *str_requires_grad;
static PyObject *str_is_conj, *str_is_neg, *str_is_inference;

static inline bool
is_plain(PyTypeObject *type)
{
    for (int i = 0; i < torch.plain_count; i++) {
        if (torch.plain_types[i] == type) {
            return true;
        }
    }
    return false;
}

static inline uint64_t
keys_of(PyObject *tensor)
{
    uint64_t *impl = *(uint64_t **)handle_of(tensor);
    return impl[torch.keys_word];
}

/* ------------------------------------------------------------------ reading a tensor */

static int64_t
read_ints(PyObject *sequence, int64_t *out)
{
    PyObject *fast = sequence != NULL ? PySequence_Fast(sequence, "expected a sequence of sizes") : NULL;
    if (fast == NULL) {
        return -1;
    }
    int64_t n = PySequence_Fast_GET_SIZE(fast);
    if (n > TENSOR_MAX_DIMS) {
        PyErr_SetString(PyExc_ValueError, "a tensor with more than 64 dimensions");
        n = -1;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, i));
        if (out[i] == -1 && PyErr_Occurred()) {
            n = -1;
        }
    }
    Py_DECREF(fast);
    return n;
}

static int
shape_by_attributes(PyObject *tensor, TensorShape *out)
{
    PyObject *shape = PyObject_GetAttr(tensor, str_shape);
    out->ndim = read_ints(shape, out->buffer);
    out->sizes = out->buffer;
    out->strides = NULL;
    out->offset = 0;
    Py_XDECREF(shape);
    if (out->ndim < 0) {
        return -1;
    }
    PyObject *strides = PyObject_CallMethodNoArgs(tensor, str_stride);
    if (strides == NULL) { /* sparse layouts have none */
        PyErr_Clear();
        return 0;
    }
    out->strides = out->buffer + TENSOR_MAX_DIMS;
    int64_t n = read_ints(strides, out->buffer + TENSOR_MAX_DIMS);
    Py_DECREF(strides);
    if (n != out->ndim) {
        return -1;
    }
    PyObject *offset = PyObject_CallMethodNoArgs(tensor, str_storage_offset);
    if (offset == NULL) {
        PyErr_Clear();
        return 0;
    }
    out->offset = PyLong_AsLongLong(offset);
    Py_DECREF(offset);
    return PyErr_Occurred() ? -1 : 0;
}

int
tensor_shape_native(PyObject *tensor, TensorShape *out)
{
    void *handle = handle_of(tensor);
    int64_t *sizes, *strides;
    if (torch.get_dim(handle, &out->ndim) || torch.get_sizes(handle, &sizes)
        || torch.get_strides(handle, &strides) || torch.get_offset(handle, &out->offset)) {
        return -1;
    }
    out->sizes = sizes;
    out->strides = strides;
    return 0;
}

int
tensor_shape(PyObject *tensor, TensorShape *out)
{
    if (torch.native_tensor && is_plain(Py_TYPE(tensor)) && tensor_shape_native(tensor, out) == 0) {
        return 0;
    }
    return shape_by_attributes(tensor, out);
}

static int64_t
call_for_int(PyObject *tensor, PyObject *name)
{
    PyObject *value = PyObject_CallMethodNoArgs(tensor, name);
    int64_t number = value != NULL ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    return number;
}

static int
memory_of(PyObject *tensor, int64_t *address, int64_t *item)
{
    if (torch.native_tensor && is_plain(Py_TYPE(tensor))) {
        int32_t scalar_type;
        void *pointer;
        if (torch.get_data_ptr(handle_of(tensor), &pointer) == 0
            && torch.get_dtype(handle_of(tensor), &scalar_type) == 0) {
            *address = (int64_t)(intptr_t)pointer;
            *item = (int64_t)torch.element_size(scalar_type);
            return 0;
        }
    }
    *address = call_for_int(tensor, str_data_ptr);
    *item = *address == -1 && PyErr_Occurred() ? -1 : call_for_int(tensor, str_element_size);
    return *item == -1 ? -1 : 0;
}

int
tensor_extent(PyObject *tensor, int64_t *start, int64_t *end)
{
    TensorShape shape;
    int64_t item;
    if (tensor_shape(tensor, &shape) < 0 || memory_of(tensor, start, &item) < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "cannot read the tensor");
        }
        return -1;
    }
    int64_t last = 0;
    bool empty = *start == 0 || shape.strides == NULL;
    for (int64_t i = 0; i < shape.ndim && !empty; i++) {
        empty = shape.sizes[i] == 0;
        last += (shape.sizes[i] - 1) * shape.strides[i];
    }
    *end = empty ? *start : *start + (last + 1) * item;
    return 0;
}

static int
flag(PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

static int
read_requires_grad(PyObject *tensor, bool native)
{
    if (native && torch.autograd_word != 0) {
        return impl_requires_grad(*(uint64_t **)handle_of(tensor));
    }
    if (native && torch.requires_grad != NULL) {
        return flag(torch.requires_grad(tensor, torch.requires_grad_closure));
    }
    return flag(PyObject_GetAttr(tensor, str_requires_grad));
}

/* ------------------------------------------------------------------ metadata guards */

int
tensor_meta_native(PyObject *tensor, TensorMeta *out)
{
    void *handle = handle_of(tensor);
    out->keys = keys_of(tensor);
    return torch.get_dtype(handle, &out->scalar_type) || torch.get_device_type(handle, &out->device_type)
                   || torch.get_device_index(handle, &out->device_index)
               ? -1
               : 0;
}

static int
meta_read_attributes(PyObject *tensor, TensorMeta *out)
{
    out->dtype = PyObject_GetAttr(tensor, str_dtype);
    out->device = PyObject_GetAttr(tensor, str_device);
    out->layout = PyObject_GetAttr(tensor, str_layout);
    if (out->dtype == NULL || out->device == NULL || out->layout == NULL) {
        return -1;
    }
    out->is_conj = flag(PyObject_CallMethodNoArgs(tensor, str_is_conj));
    out->is_neg = out->is_conj < 0 ? -1 : flag(PyObject_CallMethodNoArgs(tensor, str_is_neg));
    out->is_inference = out->is_neg < 0 ? -1 : flag(PyObject_CallMethodNoArgs(tensor, str_is_inference));
    return out->is_inference < 0 ? -1 : 0;
}

static void
meta_clear_attributes(TensorMeta *meta)
{
    Py_CLEAR(meta->dtype);
    Py_CLEAR(meta->device);
    Py_CLEAR(meta->layout);
}

bool
tensor_is(PyObject *value)
{
    return torch.tensor_type != NULL && PyType_IsSubtype(Py_TYPE(value), (PyTypeObject *)torch.tensor_type);
}

bool
tensor_contiguous(int64_t ndim, const int64_t *sizes, const int64_t *strides)
{
    int64_t expected = 1;
    for (int64_t i = 0; i < ndim; i++) {
        if (sizes[i] == 0) {
            return true;
        }
    }
    for (int64_t i = ndim - 1; i >= 0; i--) {
        if (sizes[i] != 1 && strides[i] != expected) {
            return false;
        }
        expected *= sizes[i];
    }
    return true;
}

/* Overwrites `out` by a sequence of int | None; -1 with an exception. Returns 1 if there was a None. */
static int
override_dims(const char *what, PyObject *values, int64_t ndim, int64_t *out)
{
    if (values == NULL || values == Py_None) {
        return 0;
    }
    PyObject *fast = PySequence_Fast(values, "check_tensor: sizes and strides must be sequences");
    if (fast == NULL) {
        return -1;
    }
    int any = 0;
    if (PySequence_Fast_GET_SIZE(fast) != ndim) {
        PyErr_Format(PyExc_ValueError, "check_tensor: %zd %s for a tensor of %lld dimensions",
                     PySequence_Fast_GET_SIZE(fast), what, (long long)ndim);
        any = -1;
    }
    for (int64_t i = 0; any >= 0 && i < ndim; i++) {
        PyObject *value = PySequence_Fast_GET_ITEM(fast, i);
        if (value == Py_None) {
            out[i] = -1;
            any = 1;
            continue;
        }
        out[i] = PyLong_AsLongLong(value);
        if (out[i] < 0) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "check_tensor: negative number in %s", what);
            }
            any = -1;
        }
    }
    Py_DECREF(fast);
    return any;
}

static int
meta_set_dims(TensorMeta *meta, PyObject *example, PyObject *sizes, PyObject *strides)
{
    TensorShape shape;
    if ((meta->native ? tensor_shape_native(example, &shape) : tensor_shape(example, &shape)) < 0) {
        return -1;
    }
    meta->ndim = shape.ndim;
    meta->offset = shape.offset;
    meta->has_strides = shape.strides != NULL;
    meta->sizes = PyMem_Calloc(2 * shape.ndim + 1, sizeof(int64_t));
    if (meta->sizes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    meta->strides = meta->sizes + shape.ndim;
    memcpy(meta->sizes, shape.sizes, shape.ndim * sizeof(int64_t));
    if (shape.strides != NULL) {
        memcpy(meta->strides, shape.strides, shape.ndim * sizeof(int64_t));
    }
    bool contiguous = shape.strides != NULL && tensor_contiguous(shape.ndim, shape.sizes, shape.strides);
    int dynamic = override_dims("sizes", sizes, shape.ndim, meta->sizes);
    if (dynamic < 0 || override_dims("strides", strides, shape.ndim, meta->strides) < 0) {
        return -1;
    }
    if (dynamic && contiguous && (strides == NULL || strides == Py_None)) {
        meta->contiguous = true;
        for (int64_t i = 0; i < shape.ndim; i++) {
            meta->strides[i] = -1;
        }
    }
    return 0;
}

TensorMeta *
tensor_meta_new(PyObject *example, PyObject *sizes, PyObject *strides, int64_t min_size, PyObject *requires_grad,
                bool storage_offset, StoredMetadata stored)
{
    if (!torch.ready) {
        PyErr_SetString(PyExc_RuntimeError, "check_tensor: call dynamo_capture.hook.init_torch() first");
        return NULL;
    }
    int is_tensor = PyObject_IsInstance(example, torch.tensor_type);
    if (is_tensor <= 0) {
        if (is_tensor == 0) {
            PyErr_Format(PyExc_TypeError, "check_tensor: the example must be a tensor, not %R", example);
        }
        return NULL;
    }
    TensorMeta *meta = PyMem_Calloc(1, sizeof(TensorMeta));
    if (meta == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    meta->type = (PyTypeObject *)Py_NewRef(Py_TYPE(example));
    meta->stored = stored != NOT_STORED;
    meta->native = torch.native_tensor && (stored != NOT_STORED || is_plain(meta->type));
    meta->min_size = min_size;
    meta->check_offset = storage_offset;
    int grad = requires_grad == NULL || requires_grad == Py_None ? read_requires_grad(example, meta->native)
                                                                  : PyObject_IsTrue(requires_grad);
    meta->requires_grad = grad > 0;
    /* The attributes also of those that are compared natively: a failure is told in their words. */
    int status = stored == STORED_UNASKED ? 0 : meta_read_attributes(example, meta);
    if (status == 0 && meta->native) {
        status = tensor_meta_native(example, meta);
    }
    if (grad < 0 || status < 0 || meta_set_dims(meta, example, sizes, strides) < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "check_tensor: cannot read the example's metadata");
        }
        tensor_meta_free(meta);
        return NULL;
    }
    return meta;
}

void
tensor_meta_free(TensorMeta *meta)
{
    if (meta == NULL) {
        return;
    }
    meta_clear_attributes(meta);
    Py_XDECREF(meta->type);
    PyMem_Free(meta->sizes);
    PyMem_Free(meta);
}

int
tensor_meta_traverse(TensorMeta *meta, visitproc visit, void *arg)
{
    Py_VISIT(meta->type);
    return 0;
}

static int
meta_same_attributes(const TensorMeta *meta, PyObject *value)
{
    TensorMeta other = {0};
    int same = meta_read_attributes(value, &other);
    if (same == 0) {
        same = other.dtype == meta->dtype && other.layout == meta->layout && other.is_conj == meta->is_conj
               && other.is_neg == meta->is_neg && other.is_inference == meta->is_inference;
        if (same) {
            same = PyObject_RichCompareBool(other.device, meta->device, Py_EQ);
        }
    }
    meta_clear_attributes(&other);
    return same;
}

static inline int
meta_same_native(const TensorMeta *meta, PyObject *value)
{
    void *handle = handle_of(value);
    int32_t number;
    if (keys_of(value) != meta->keys || torch.get_dtype(handle, &number) || number != meta->scalar_type
        || torch.get_device_type(handle, &number) || number != meta->device_type) {
        return 0;
    }
    /* Device type 0 is the CPU, which has one index only. */
    return meta->device_type == 0
           || (torch.get_device_index(handle, &number) == 0 && number == meta->device_index);
}

int
tensor_meta_check(const TensorMeta *meta, PyObject *value)
{
    if (Py_TYPE(value) != meta->type) {
        return 0;
    }
    int same = meta->native ? meta_same_native(meta, value) : meta_same_attributes(meta, value);
    if (same <= 0) {
        return same;
    }
    TensorShape shape;
    if ((meta->native ? tensor_shape_native(value, &shape) : shape_by_attributes(value, &shape)) < 0) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (shape.ndim != meta->ndim || (shape.strides != NULL) != meta->has_strides) {
        return 0;
    }
    for (int64_t i = 0; i < shape.ndim; i++) {
        int64_t size = meta->sizes[i];
        if (size >= 0 ? shape.sizes[i] != size : shape.sizes[i] < meta->min_size) {
            return 0;
        }
        if (shape.strides != NULL && meta->strides[i] >= 0 && shape.strides[i] != meta->strides[i]) {
            return 0;
        }
    }
    if ((meta->contiguous && !tensor_contiguous(shape.ndim, shape.sizes, shape.strides))
        || (meta->check_offset && shape.offset != meta->offset)) {
        return 0;
    }
    int grad = read_requires_grad(value, meta->native);
    return grad < 0 ? -1 : grad == meta->requires_grad;
}

/* `_native.read_tensor(tensor)`: what the guards see of a tensor (for tests and probes). */
PyObject *
tensor_read(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    TensorShape shape;
    if (tensor_shape(tensor, &shape) < 0) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_RuntimeError, "cannot read the tensor");
        }
        return NULL;
    }
    PyObject *sizes = tensor_dims_text(shape.ndim, shape.sizes);
    PyObject *strides = shape.strides != NULL ? tensor_dims_text(shape.ndim, shape.strides) : Py_NewRef(Py_None);
    if (sizes == NULL || strides == NULL) {
        Py_XDECREF(sizes);
        Py_XDECREF(strides);
        return NULL;
    }
    return Py_BuildValue("{s:N,s:N,s:L,s:i}", "sizes", sizes, "strides", strides, "offset",
                         (long long)shape.offset, "requires_grad", read_requires_grad(tensor, torch.native_tensor && is_plain(Py_TYPE(tensor))));
}

/* ------------------------------------------------------------------ global state */

#define STATE_WORDS 10

struct StateMeta {
    bool native;
    uint64_t words[STATE_WORDS];
    PyObject *values; /* tuple, when not native */
};

static const char *const word_names[STATE_WORDS] = {
    "included dispatch keys",   "excluded dispatch keys", "grad or inference mode", "torch function modes",
    "torch function enablement", "deterministic algorithms", "default dtype",        "autocast dtype (cpu)",
    "autocast dtype (cuda)",    "autocast cache",
};

void *
tensor_symbol(const char *name)
{
    for (int i = 0; i < torch.library_count; i++) {
        void *symbol = dlsym(torch.libraries[i], name);
        if (symbol != NULL) {
            return symbol;
        }
    }
    return NULL;
}

/* torch keeps the thread's included and excluded dispatch keys in a thread-local pair; dlsym gives its address
 * for the calling thread. */
static uint64_t *
local_keys(void)
{
    static __thread uint64_t *address __attribute__((tls_model("initial-exec")));
    if (address == NULL) {
        address = tensor_symbol("_ZN3c104impl26raw_local_dispatch_key_setE");
    }
    return address;
}

static bool
read_words(uint64_t *words)
{
    uint64_t *keys = local_keys();
    if (keys == NULL) {
        return false;
    }
    void *context = torch.global_context();
    words[0] = keys[0];
    words[1] = keys[1];
    words[2] = torch.grad_enabled() | (uint64_t)torch.inference_enabled() << 1;
    words[3] = (uint64_t)torch.function_stack_len();
    words[4] = torch.function_disabled() & 0xff;
    words[5] = torch.deterministic(context) | (uint64_t)torch.deterministic_warn(context) << 1;
    words[6] = torch.default_dtype() & 0xff;
    words[7] = torch.autocast_dtype(0) & 0xff;
    words[8] = torch.autocast_dtype(1) & 0xff;
    words[9] = torch.autocast_cache();
    return true;
}

StateMeta *
state_meta_new(void)
{
    if (!torch.ready) {
        PyErr_SetString(PyExc_RuntimeError, "check_global_state: call dynamo_capture.hook.init_torch() first");
        return NULL;
    }
    StateMeta *meta = PyMem_Calloc(1, sizeof(StateMeta));
    if (meta == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    meta->native = torch.native_state && read_words(meta->words);
    if (meta->native) {
        return meta;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(torch.state_readers);
    meta->values = PyTuple_New(n);
    for (Py_ssize_t i = 0; meta->values != NULL && i < n; i++) {
        PyObject *value = PyObject_CallNoArgs(PyTuple_GET_ITEM(torch.state_readers, i));
        if (value == NULL) {
            Py_CLEAR(meta->values);
            break;
        }
        PyTuple_SET_ITEM(meta->values, i, value);
    }
    if (meta->values == NULL) {
        state_meta_free(meta);
        return NULL;
    }
    return meta;
}

void
state_meta_free(StateMeta *meta)
{
    if (meta != NULL) {
        Py_XDECREF(meta->values);
        PyMem_Free(meta);
    }
}

/* The index of the first difference, -1 if there is none, -2 with an exception. */
static Py_ssize_t
state_first_difference(const StateMeta *meta)
{
    if (meta->native) {
        uint64_t words[STATE_WORDS];
        if (!read_words(words)) {
            return 0;
        }
        for (int i = 0; i < STATE_WORDS; i++) {
            if (words[i] != meta->words[i]) {
                return i;
            }
        }
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(meta->values); i++) {
        PyObject *value = PyObject_CallNoArgs(PyTuple_GET_ITEM(torch.state_readers, i));
        if (value == NULL) {
            return -2;
        }
        bool equal = guard_const_equal(value, PyTuple_GET_ITEM(meta->values, i));
        Py_DECREF(value);
        if (!equal) {
            return i;
        }
    }
    return -1;
}

int
state_meta_check(const StateMeta *meta)
{
    Py_ssize_t difference = state_first_difference(meta);
    return difference == -2 ? -1 : difference == -1;
}

PyObject *
state_meta_difference(const StateMeta *meta)
{
    Py_ssize_t i = state_first_difference(meta);
    if (i < 0) {
        PyErr_Clear();
        return PyUnicode_FromString("nothing");
    }
    if (meta->native) {
        return PyUnicode_FromString(word_names[i]);
    }
    return Py_NewRef(PyTuple_GET_ITEM(torch.state_names, i));
}

PyObject *
tensor_state_words(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    uint64_t words[STATE_WORDS];
    if (!torch.native_state || !read_words(words)) {
        Py_RETURN_NONE;
    }
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < STATE_WORDS; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(words[i]);
        if (value == NULL || PyDict_SetItemString(dict, word_names[i], value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

/* ------------------------------------------------------------------ initialisation */

#define FIND(field, name) ((torch.field = (__typeof__(torch.field))tensor_symbol(name)) != NULL)

static bool
find_tensor_functions(void)
{
    return FIND(get_dim, "aoti_torch_get_dim") && FIND(get_offset, "aoti_torch_get_storage_offset")
           && FIND(get_sizes, "aoti_torch_get_sizes") && FIND(get_strides, "aoti_torch_get_strides")
           && FIND(get_dtype, "aoti_torch_get_dtype") && FIND(get_device_type, "aoti_torch_get_device_type")
           && FIND(get_device_index, "aoti_torch_get_device_index")
           && FIND(get_data_ptr, "aoti_torch_get_data_ptr")
           && FIND(element_size, "aoti_torch_dtype_element_size");
}

static bool
find_state_functions(void)
{
    return FIND(grad_enabled, "_ZN3c108GradMode10is_enabledEv")
           && FIND(inference_enabled, "_ZN3c1013InferenceMode10is_enabledEv")
           && FIND(function_stack_len, "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv")
           && FIND(function_disabled, "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv")
           && FIND(global_context, "_ZN2at13globalContextEv")
           && FIND(deterministic, "_ZNK2at7Context23deterministicAlgorithmsEv")
           && FIND(deterministic_warn, "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv")
           && FIND(default_dtype, "_ZN3c1031get_default_dtype_as_scalartypeEv")
           && FIND(autocast_dtype, "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE")
           && FIND(autocast_cache, "_ZN2at8autocast25is_autocast_cache_enabledEv") && local_keys() != NULL;
}

static uint64_t
fact(PyObject *facts, const char *name)
{
    PyObject *value = PyDict_GetItemString(facts, name);
    return value != NULL ? PyLong_AsUnsignedLongLongMask(value) : 0;
}

/* Where the at::Tensor is in the object: the word that equals the known address of the TensorImpl. */
static int
find_handle_offset(PyObject *tensor, PyObject *facts)
{
    uint64_t impl = fact(facts, "impl");
    for (int offset = 16; offset <= 24; offset += 8) {
        if (impl != 0 && *(uint64_t *)((char *)tensor + offset) == impl) {
            return offset;
        }
    }
    return -1;
}

/* Whether the native path finds the same memory as the methods. */
static bool
memory_agrees(PyObject *tensor)
{
    int64_t native, native_item, slow = call_for_int(tensor, str_data_ptr);
    torch.native_tensor = true;
    int status = memory_of(tensor, &native, &native_item);
    torch.native_tensor = false;
    return status == 0 && native == slow && native_item == call_for_int(tensor, str_element_size);
}

static bool
probe_agrees(PyObject *tensor, PyObject *facts)
{
    TensorShape native, slow;
    TensorMeta meta;
    if (find_handle_offset(tensor, facts) != torch.handle_offset || tensor_shape_native(tensor, &native) < 0
        || shape_by_attributes(tensor, &slow) < 0 || slow.strides == NULL || tensor_meta_native(tensor, &meta) < 0) {
        return false;
    }
    size_t bytes = native.ndim * sizeof(int64_t);
    return native.ndim == slow.ndim && native.offset == slow.offset && memcmp(native.sizes, slow.sizes, bytes) == 0
           && memcmp(native.strides, slow.strides, bytes) == 0
           && (uint64_t)meta.scalar_type == fact(facts, "scalar_type")
           && (uint64_t)meta.device_type == fact(facts, "device_type")
           && (int64_t)meta.device_index == (int64_t)fact(facts, "device_index")
           && meta.keys == fact(facts, "dispatch_keys") && memory_agrees(tensor);
}

/* The word of the TensorImpl that holds every probe's dispatch key set. */
static int
find_keys_word(PyObject *probes)
{
    for (int word = 1; word < TENSOR_IMPL_WORDS; word++) {
        bool all = true;
        for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(probes); i++) {
            PyObject *probe = PyTuple_GET_ITEM(probes, i);
            uint64_t *impl = *(uint64_t **)handle_of(PyTuple_GET_ITEM(probe, 0));
            all = impl[word] == fact(PyTuple_GET_ITEM(probe, 1), "dispatch_keys");
        }
        if (all) {
            return word;
        }
    }
    return -1;
}

static bool
tensor_probes_agree(PyObject *probes)
{
    Py_ssize_t n = PyTuple_GET_SIZE(probes);
    if (n == 0 || !find_tensor_functions()) {
        return false;
    }
    PyObject *first = PyTuple_GET_ITEM(probes, 0);
    torch.handle_offset = find_handle_offset(PyTuple_GET_ITEM(first, 0), PyTuple_GET_ITEM(first, 1));
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *probe = PyTuple_GET_ITEM(probes, i);
        if (torch.handle_offset < 0
            || find_handle_offset(PyTuple_GET_ITEM(probe, 0), PyTuple_GET_ITEM(probe, 1)) != torch.handle_offset) {
            return false;
        }
    }
    torch.keys_word = find_keys_word(probes);
    if (torch.keys_word < 0) {
        return false;
    }
    torch.window = tensor_find_window(probes);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *probe = PyTuple_GET_ITEM(probes, i);
        if (!probe_agrees(PyTuple_GET_ITEM(probe, 0), PyTuple_GET_ITEM(probe, 1))) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

static void
find_requires_grad(PyObject *tensor_type)
{
    PyObject *descriptor = PyObject_GetAttrString(tensor_type, "requires_grad");
    torch.requires_grad = NULL;
    if (descriptor == NULL) {
        PyErr_Clear();
        return;
    }
    if (Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
        PyGetSetDef *definition = ((PyGetSetDescrObject *)descriptor)->d_getset;
        torch.requires_grad = definition->get;
        torch.requires_grad_closure = definition->closure;
    }
    Py_DECREF(descriptor); /* the type keeps it */
}

static int
intern_names(void)
{
    struct { PyObject **place; const char *text; } names[] = {
        {&str_shape, "shape"}, {&str_stride, "stride"}, {&str_storage_offset, "storage_offset"},
        {&str_dtype, "dtype"}, {&str_device, "device"}, {&str_layout, "layout"},
        {&str_requires_grad, "requires_grad"}, {&str_is_conj, "is_conj"}, {&str_is_neg, "is_neg"},
        {&str_is_inference, "is_inference"}, {&str_data_ptr, "data_ptr"}, {&str_element_size, "element_size"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (*names[i].place == NULL && (*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    return 0;
}

/* init_torch(tensor_type, plain_types, probes, autograd, state_names, state_readers, libraries); tuples all. */
PyObject *
tensor_init(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *tensor_type, *plain, *probes, *autograd, *names, *readers, *libraries;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!:init_torch", &PyType_Type, &tensor_type, &PyTuple_Type, &plain,
                          &PyTuple_Type, &probes, &PyTuple_Type, &autograd, &PyTuple_Type, &names, &PyTuple_Type,
                          &readers, &PyTuple_Type, &libraries)
        || intern_names() < 0) {
        return NULL;
    }
    torch.library_count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(libraries) && torch.library_count < MAX_LIBRARIES; i++) {
        const char *path = PyUnicode_AsUTF8(PyTuple_GET_ITEM(libraries, i));
        if (path == NULL) {
            return NULL;
        }
        void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (handle != NULL) {
            torch.libraries[torch.library_count++] = handle;
        }
    }
    Py_XSETREF(torch.tensor_type, Py_NewRef(tensor_type));
    Py_XSETREF(torch.state_names, Py_NewRef(names));
    Py_XSETREF(torch.state_readers, Py_NewRef(readers));
    torch.plain_count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain) && torch.plain_count < MAX_PLAIN_TYPES; i++) {
        torch.plain_types[torch.plain_count++] = (PyTypeObject *)Py_NewRef(PyTuple_GET_ITEM(plain, i));
    }
    find_requires_grad(tensor_type);
    torch.native_tensor = tensor_probes_agree(probes);
    torch.autograd_word = 0;
    if (torch.native_tensor) {
        tensor_find_autograd(probes, autograd);
    }
    torch.native_state = find_state_functions();
    torch.ready = true;
    return Py_BuildValue("{s:O,s:O}", "tensor", torch.native_tensor ? Py_True : Py_False, "state",
                         torch.native_state ? Py_True : Py_False);
}

/* use_native(tensor, state): switch a fast path off (its probe disagreed; or a test wants the other path). */
PyObject *
tensor_use_native(PyObject *Py_UNUSED(module), PyObject *args)
{
    int tensor, state;
    if (!PyArg_ParseTuple(args, "pp:use_native", &tensor, &state)) {
        return NULL;
    }
    torch.native_tensor = tensor && torch.handle_offset >= 0 && torch.keys_word >= 0;
    torch.native_state = state && torch.autocast_cache != NULL && local_keys() != NULL;
    Py_RETURN_NONE;
}
