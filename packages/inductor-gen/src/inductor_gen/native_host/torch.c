/* PyTorch's operators through its C interface, which libtorch_cpu has: no header of it is needed, nor C++. */
int aoti_torch_create_tensor_from_blob(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t,
                                       qr_handle*);
int aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, qr_handle*);
int aoti_torch_new_tensor_handle(qr_handle, qr_handle*);
int aoti_torch_delete_tensor_object(qr_handle);
int aoti_torch_get_data_ptr(qr_handle, void**);
int aoti_torch_get_dim(qr_handle, int64_t*);
int aoti_torch_get_sizes(qr_handle, int64_t**);
int aoti_torch_get_strides(qr_handle, int64_t**);
int aoti_torch_copy_(qr_handle, qr_handle, int32_t);
int aoti_torch_clone(qr_handle, qr_handle*);
int aoti_torch_cpu_addmm_out(qr_handle, qr_handle, qr_handle, qr_handle, double, double);
int aoti_torch_cpu_baddbmm_out(qr_handle, qr_handle, qr_handle, qr_handle, double, double);
int aoti_torch_cpu__addmm_activation(qr_handle, qr_handle, qr_handle, double, double, int32_t, qr_handle*);
_Bool aoti_torch_grad_mode_is_enabled(void);
void aoti_torch_grad_mode_set_enabled(_Bool);
int torch_call_dispatcher(const char*, const char*, uint64_t*, uint64_t);
int torch_new_list_reserve_size(size_t, void**);
int torch_list_push_back(void*, uint64_t);
int torch_new_string_handle(const char*, size_t, void**);
int torch_new_stable_ivalue(uint64_t**);
const char* torch_exception_get_what_without_backtrace(void);

static int qr_delete(qr_handle* h) {
    if (*h) aoti_torch_delete_tensor_object(*h);
    *h = NULL;
    return 0;
}

/* A tensor of somebody else's memory. */
static int qr_view(const void* data, int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides,
                   qr_handle* out) {
    return aoti_torch_create_tensor_from_blob((void*)data, ndim, sizes, strides, 0, dtype, 0, 0, out);
}

static void* qr_data(qr_handle h) {
    void* found = NULL;
    aoti_torch_get_data_ptr(h, &found);
    return found;
}

/* Values on an operator's stack; they belong to the call. */
static uint64_t qv_float(double x) {
    uint64_t word;
    memcpy(&word, &x, 8);
    return word;
}

static int qv_tensor(qr_handle h, uint64_t* out) {
    qr_handle own = NULL;
    if (aoti_torch_new_tensor_handle(h, &own)) return 1;
    *out = (uint64_t)(uintptr_t)own;
    return 0;
}

static int qv_list(int64_t count, const uint64_t* values, uint64_t* out) {
    void* list = NULL;
    if (torch_new_list_reserve_size((size_t)count, &list)) return 1;
    for (int64_t k = 0; k < count; k++)
        if (torch_list_push_back(list, values[k])) return 1;
    *out = (uint64_t)(uintptr_t)list;
    return 0;
}

static int qv_string(const char* text, uint64_t* out) {
    void* string = NULL;
    if (torch_new_string_handle(text, strlen(text), &string)) return 1;
    *out = (uint64_t)(uintptr_t)string;
    return 0;
}

static int qv_some(uint64_t value, uint64_t* out) {
    uint64_t* held = NULL;
    if (torch_new_stable_ivalue(&held)) return 1;
    *held = value;
    *out = (uint64_t)(uintptr_t)held;
    return 0;
}

/* See that a result has the strides that the kernels were written for; else lay it out anew. */
static int qr_planned(qr_handle* h, int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides) {
    int64_t dims = 0, *has = NULL, *steps = NULL;
    if (aoti_torch_get_dim(*h, &dims) || dims != ndim || aoti_torch_get_sizes(*h, &has) ||
        aoti_torch_get_strides(*h, &steps))
        return 1;
    for (int32_t k = 0; k < ndim; k++)
        if (has[k] != sizes[k]) return 1;
    if (qr_same(sizes, steps, strides, ndim)) return 0;
    qr_handle other = NULL;
    if (aoti_torch_empty_strided(ndim, sizes, strides, dtype, 0, 0, &other)) return 1;
    if (aoti_torch_copy_(other, *h, 0)) {
        qr_delete(&other);
        return 1;
    }
    qr_delete(h);
    *h = other;
    return 0;
}

static const char* qr_said(void) {
    const char* found = torch_exception_get_what_without_backtrace();
    return found && *found ? found : "no reason given";
}
