/* What every packaged program is made of beside its own text, which includes this: weights from a file, checks of the
 * inputs, memory, results, and PyTorch's operators through its C interface. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "quintet.h"

#define API __attribute__((visibility("default")))
#define LINE 64 /* bytes at whose multiples buffers begin */
#define UP(n) (((n) + (LINE - 1)) / LINE * LINE)
enum { QR_MOST = 64 }; /* dimensions of a tensor */

static int64_t qt_floordiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
static int64_t qt_mod(int64_t a, int64_t b) { return a - qt_floordiv(a, b) * b; }
static int64_t qt_min(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t qt_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- what a program's text says of itself ---------------------------------------------------------------------- */

typedef struct { const char* name; int64_t min, max; } qr_dim;
typedef struct {
    const char* name;
    int32_t dtype, ndim;
    const int64_t* sizes; /* below 0: the dimension -1 - size */
} qr_input;
typedef struct {
    const char* name;
    int32_t dtype, ndim;
    const int64_t *sizes, *strides;
} qr_weight;

static int64_t qr_width(int32_t dtype) {
    switch (dtype) {
        case QUINTET_INT16: case QUINTET_FLOAT16: case QUINTET_BFLOAT16: return 2;
        case QUINTET_INT32: case QUINTET_FLOAT32: return 4;
        case QUINTET_INT64: case QUINTET_FLOAT64: return 8;
        default: return 1;
    }
}

static const char* qr_dtype(int32_t dtype) {
    switch (dtype) {
        case QUINTET_UINT8: return "uint8"; case QUINTET_INT8: return "int8"; case QUINTET_INT16: return "int16";
        case QUINTET_INT32: return "int32"; case QUINTET_INT64: return "int64"; case QUINTET_FLOAT16: return "float16";
        case QUINTET_FLOAT32: return "float32"; case QUINTET_FLOAT64: return "float64"; case QUINTET_BOOL: return "bool";
        case QUINTET_BFLOAT16: return "bfloat16"; default: return "an unknown dtype";
    }
}

static void qr_fail(char** error, const char* form, ...) {
    if (!error || *error) return; /* the first error is the one to tell */
    va_list parts;
    va_start(parts, form);
    if (vasprintf(error, form, parts) < 0) *error = NULL;
    va_end(parts);
}

static void* qr_new(int64_t bytes) {
    void* found = NULL;
    return posix_memalign(&found, LINE, (size_t)UP(bytes > 0 ? bytes : 1)) ? NULL : found;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static void qr_rows(char* to, const int64_t* to_steps, const char* from, const int64_t* from_steps, const int64_t* sizes,
                    int32_t ndim, int64_t width) {
    if (!ndim) {
        memcpy(to, from, (size_t)width);
        return;
    }
    if (ndim == 1 && to_steps[0] == 1 && from_steps[0] == 1) {
        if (*sizes > 0) memcpy(to, from, (size_t)(width * *sizes));
        return;
    }
    for (int64_t k = 0; k < *sizes; k++)
        qr_rows(to + k * *to_steps * width, to_steps + 1, from + k * *from_steps * width, from_steps + 1, sizes + 1,
                ndim - 1, width);
}

static void qr_row_major(const int64_t* sizes, int32_t ndim, int64_t* strides) {
    int64_t step = 1;
    for (int32_t k = ndim - 1; k >= 0; k--) {
        strides[k] = step;
        step *= qt_max(sizes[k], 1);
    }
}

static int64_t qr_extent(const int64_t* sizes, const int64_t* strides, int32_t ndim, int64_t width) {
    int64_t last = 0;
    for (int32_t k = 0; k < ndim; k++) {
        if (!sizes[k]) return 0;
        last += (sizes[k] - 1) * strides[k];
    }
    return (last + 1) * width;
}

static int qr_same(const int64_t* sizes, const int64_t* a, const int64_t* b, int32_t ndim) {
    for (int32_t k = 0; k < ndim; k++)
        if (sizes[k] == 0) return 1;
    for (int32_t k = 0; k < ndim; k++)
        if (sizes[k] != 1 && a[k] != b[k]) return 0;
    return 1;
}

/* ---- weights: a file of safetensors ------------------------------------------------------------------------------ */

typedef struct { const char *at, *end; } qr_text;

static void qr_blank(qr_text* t) { while (t->at < t->end && strchr(" \t\r\n", *t->at) && *t->at) t->at++; }

static int qr_take(qr_text* t, char c) {
    qr_blank(t);
    if (t->at >= t->end || *t->at != c) return 0;
    t->at++;
    return 1;
}

/* A string, of at most `room` bytes with its end; -1 where there is none, or a longer one. Escapes other than of quotes,
 * backslashes and slashes stay as they are: no name of a program has them. */
static int qr_string(qr_text* t, char* out, size_t room) {
    size_t n = 0;
    if (!qr_take(t, '"')) return -1;
    while (t->at < t->end && *t->at != '"') {
        if (*t->at == '\\' && t->at + 1 < t->end && strchr("\"\\/", t->at[1])) t->at++;
        if (n + 1 < room) out[n] = *t->at;
        n++;
        t->at++;
    }
    if (room) out[n < room ? n : room - 1] = 0;
    return t->at++ < t->end && n < room ? 0 : (t->at <= t->end ? 1 : -1);
}

static int qr_number(qr_text* t, int64_t* out) {
    qr_blank(t);
    int64_t n = 0;
    const char* first = t->at;
    while (t->at < t->end && *t->at >= '0' && *t->at <= '9' && t->at - first < 18) n = 10 * n + (*t->at++ - '0');
    *out = n;
    return t->at > first ? 0 : -1;
}

static int qr_numbers(qr_text* t, int64_t* out, int most, int* count) {
    *count = 0;
    if (!qr_take(t, '[')) return -1;
    if (qr_take(t, ']')) return 0;
    do {
        if (*count >= most || qr_number(t, &out[*count])) return -1;
        (*count)++;
    } while (qr_take(t, ','));
    return qr_take(t, ']') ? 0 : -1;
}

/* Over a value that is an object of strings. */
static int qr_skip(qr_text* t) {
    char nothing[1];
    if (!qr_take(t, '{')) return -1;
    if (qr_take(t, '}')) return 0;
    do {
        if (qr_string(t, nothing, 0) < 0 || !qr_take(t, ':') || qr_string(t, nothing, 0) < 0) return -1;
    } while (qr_take(t, ','));
    return qr_take(t, '}') ? 0 : -1;
}

static int32_t qr_dtype_of(const char* name) {
    static const struct { const char* name; int32_t dtype; } known[] = {
        {"F32", QUINTET_FLOAT32}, {"F64", QUINTET_FLOAT64}, {"F16", QUINTET_FLOAT16}, {"BF16", QUINTET_BFLOAT16},
        {"I64", QUINTET_INT64}, {"I32", QUINTET_INT32}, {"I16", QUINTET_INT16}, {"I8", QUINTET_INT8},
        {"U8", QUINTET_UINT8}, {"BOOL", QUINTET_BOOL}};
    for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++)
        if (!strcmp(known[k].name, name)) return known[k].dtype;
    return -1;
}

/* Put one weight of the file, whose entry follows, where it belongs; those that the program does not take are passed. */
static int qr_entry(qr_text* t, const char* name, const char* data, int64_t bytes, const qr_weight* weights, int64_t count,
                    char** places, char** error) {
    char key[32], type[32] = "";
    int64_t shape[QR_MOST], span[2] = {0, 0};
    int ndim = -1, two = 0;
    if (!qr_take(t, '{')) return -1;
    do {
        if (qr_string(t, key, sizeof(key)) || !qr_take(t, ':')) return -1;
        if (!strcmp(key, "dtype")) {
            if (qr_string(t, type, sizeof(type))) return -1;
        } else if (!strcmp(key, "shape")) {
            if (qr_numbers(t, shape, QR_MOST, &ndim)) return -1;
        } else if (!strcmp(key, "data_offsets")) {
            if (qr_numbers(t, span, 2, &two) || two != 2) return -1;
        } else return -1;
    } while (qr_take(t, ','));
    if (!qr_take(t, '}') || ndim < 0 || two != 2 || span[0] > span[1] || span[1] > bytes) return -1;
    int64_t at = 0;
    while (at < count && strcmp(weights[at].name, name)) at++;
    if (at == count) return 0;
    const qr_weight* w = &weights[at];
    if (qr_dtype_of(type) != w->dtype) {
        qr_fail(error, "the weight %s has dtype %s, expected %s", name, type, qr_dtype(w->dtype));
        return -1;
    }
    int64_t number = 1;
    int same = ndim == w->ndim;
    for (int k = 0; same && k < ndim; k++) same = shape[k] == w->sizes[k], number *= shape[k];
    if (!same || number * qr_width(w->dtype) != span[1] - span[0]) {
        qr_fail(error, "the weight %s has another shape than the program takes", name);
        return -1;
    }
    if (places[at]) {
        qr_fail(error, "the weight %s is in the file twice", name);
        return -1;
    }
    int64_t rows[QR_MOST];
    qr_row_major(w->sizes, w->ndim, rows);
    if (!(places[at] = qr_new(qr_extent(w->sizes, w->strides, w->ndim, qr_width(w->dtype))))) {
        qr_fail(error, "there is no memory for the weight %s", name);
        return -1;
    }
    if (number) qr_rows(places[at], w->strides, data + span[0], rows, w->sizes, w->ndim, qr_width(w->dtype));
    return 0;
}

static int qr_parse(const char* file, int64_t bytes, const char* path, const qr_weight* weights, int64_t count,
                    char** places, char** error) {
    uint64_t head = 0;
    if (bytes >= 8) memcpy(&head, file, 8);
    if (bytes < 8 || head > (uint64_t)(bytes - 8)) {
        qr_fail(error, "%s is no file of weights: it has %lld bytes", path, (long long)bytes);
        return -1;
    }
    qr_text t = {file + 8, file + 8 + head};
    const char* data = t.end;
    char name[4096];
    int good = qr_take(&t, '{');
    if (good && !qr_take(&t, '}')) do {
        good = !qr_string(&t, name, sizeof(name)) && qr_take(&t, ':');
        if (!good) break;
        good = !(strcmp(name, "__metadata__") ? qr_entry(&t, name, data, bytes - 8 - (int64_t)head, weights, count, places,
                                                         error) : qr_skip(&t));
    } while (good && qr_take(&t, ','));
    if (!good) {
        qr_fail(error, "%s is no file of weights: its header breaks off at byte %lld", path, (long long)(t.at - file));
        return -1;
    }
    for (int64_t k = 0; k < count; k++)
        if (!places[k]) {
            qr_fail(error, "the weight %s is missing in %s", weights[k].name, path);
            return -1;
        }
    return 0;
}

static int qr_weights(const char* path, const qr_weight* weights, int64_t count, char** places, char** error) {
    char* named = NULL;
    struct stat info;
    if (!stat(path, &info) && S_ISDIR(info.st_mode)) {
        if (asprintf(&named, "%s/weights.safetensors", path) < 0) return -1;
        path = named;
    }
    int code = -1;
    char* whole = NULL;
    FILE* file = fopen(path, "rb");
    if (!file || stat(path, &info) || !S_ISREG(info.st_mode)) {
        qr_fail(error, "%s cannot be read: %s", path, file ? "it is no file" : strerror(errno));
    } else if (!(whole = malloc((size_t)info.st_size + 1))) {
        qr_fail(error, "there is no memory to read %s", path);
    } else if (fread(whole, 1, (size_t)info.st_size, file) != (size_t)info.st_size) {
        qr_fail(error, "%s cannot be read to its end", path);
    } else {
        code = qr_parse(whole, info.st_size, path, weights, count, places, error);
    }
    free(whole);
    if (file) fclose(file);
    free(named);
    return code;
}

/* ---- inputs ------------------------------------------------------------------------------------------------------ */

static int qr_check(const qr_input* inputs, int64_t count, const qr_dim* dims, int64_t* values, int64_t ndims,
                    const quintet_tensor* given, int64_t number, char** error) {
    if (number != count) {
        qr_fail(error, "the program takes %lld inputs and was given %lld", (long long)count, (long long)number);
        return -1;
    }
    if (count && !given) {
        qr_fail(error, "there are no inputs at the place that was given for %lld", (long long)count);
        return -1;
    }
    for (int64_t k = 0; k < ndims; k++) values[k] = -1;
    for (int64_t k = 0; k < count; k++) {
        const qr_input* want = &inputs[k];
        const quintet_tensor* x = &given[k];
        if (x->dtype != want->dtype) {
            qr_fail(error, "the input %s has dtype %s, expected %s", want->name, qr_dtype(x->dtype), qr_dtype(want->dtype));
            return -1;
        }
        if (x->ndim != want->ndim) {
            qr_fail(error, "the input %s has %d dimensions, expected %d", want->name, (int)x->ndim, (int)want->ndim);
            return -1;
        }
        if (x->ndim && !x->sizes) {
            qr_fail(error, "the input %s has no sizes", want->name);
            return -1;
        }
        int64_t number_of = 1;
        for (int32_t d = 0; d < x->ndim; d++) {
            const int64_t size = x->sizes[d], wanted = want->sizes[d];
            number_of *= size;
            if (wanted >= 0) {
                if (size == wanted) continue;
                qr_fail(error, "the input %s has size %lld in dimension %d, expected %lld", want->name, (long long)size,
                        (int)d, (long long)wanted);
                return -1;
            }
            const qr_dim* dim = &dims[-1 - wanted];
            int64_t* value = &values[-1 - wanted];
            if (size < dim->min || (dim->max >= 0 && size > dim->max)) {
                qr_fail(error, "the input %s has size %lld in dimension %d, and %s is at %s %lld", want->name,
                        (long long)size, (int)d, dim->name, size < dim->min ? "least" : "most",
                        (long long)(size < dim->min ? dim->min : dim->max));
                return -1;
            }
            if (*value >= 0 && *value != size) {
                qr_fail(error, "the input %s has size %lld in dimension %d, but %s is %lld elsewhere", want->name,
                        (long long)size, (int)d, dim->name, (long long)*value);
                return -1;
            }
            *value = size;
        }
        if (number_of && !x->data) {
            qr_fail(error, "the input %s has no data", want->name);
            return -1;
        }
    }
    return 0;
}

/* ---- models and results ------------------------------------------------------------------------------------------ */

typedef struct qr_arena { struct qr_arena* next; int64_t bytes; char* memory; } qr_arena;
typedef struct qr_tensor* qr_handle; /* PyTorch's */

struct quintet_model {
    pthread_mutex_t lock, turn; /* of the arenas; of programs that write their weights */
    qr_arena* arenas;           /* that no call uses */
    char** weights;
    qr_handle* views;           /* of weights, for operators */
};

typedef struct { quintet_tensor tensor; int64_t sizes[QR_MOST], strides[QR_MOST]; } qr_output;

struct quintet_result {
    int64_t count, owned, held;
    qr_output* outputs;
    void** memory;
    qr_handle* handles;
};

/* Memory for a call's buffers: that of an earlier call where there is enough. */
static qr_arena* qr_arena_take(quintet_model* m, int64_t bytes) {
    pthread_mutex_lock(&m->lock);
    qr_arena* a = m->arenas;
    if (a) m->arenas = a->next;
    pthread_mutex_unlock(&m->lock);
    if (!a && !(a = calloc(1, sizeof(*a)))) return NULL;
    if (a->bytes < bytes || !a->memory) {
        free(a->memory);
        a->bytes = bytes;
        if (!(a->memory = qr_new(bytes))) {
            free(a);
            return NULL;
        }
    }
    return a;
}

static void qr_arena_give(quintet_model* m, qr_arena* a) {
    if (!a) return;
    pthread_mutex_lock(&m->lock);
    a->next = m->arenas;
    m->arenas = a;
    pthread_mutex_unlock(&m->lock);
}

static quintet_result* qr_result_new(int64_t outputs, int64_t owned, int64_t held) {
    quintet_result* r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->count = outputs;
    r->outputs = calloc((size_t)outputs + 1, sizeof(*r->outputs));
    r->memory = calloc((size_t)owned + 1, sizeof(*r->memory));
    r->handles = calloc((size_t)held + 1, sizeof(*r->handles));
    if (r->outputs && r->memory && r->handles) return r;
    free(r->outputs), free(r->memory), free(r->handles), free(r);
    return NULL;
}

static void qr_output_set(quintet_result* r, int64_t at, const void* data, int32_t dtype, int32_t ndim,
                          const int64_t* sizes, const int64_t* strides) {
    qr_output* o = &r->outputs[at];
    if (ndim) memcpy(o->sizes, sizes, (size_t)ndim * sizeof(int64_t));
    if (ndim) memcpy(o->strides, strides, (size_t)ndim * sizeof(int64_t));
    o->tensor = (quintet_tensor){(void*)data, dtype, ndim, o->sizes, o->strides};
}

/* The memory of an input in these strides: a copy that the result keeps where it has others. */
static void* qr_laid(const quintet_tensor* x, const int64_t* strides, quintet_result* r) {
    int64_t own[QR_MOST];
    const int64_t* has = x->strides ? x->strides : own;
    if (!x->strides) qr_row_major(x->sizes, x->ndim, own);
    if (qr_same(x->sizes, has, strides, x->ndim)) return x->data ? x->data : (void*)r;
    void* copy = qr_new(qr_extent(x->sizes, strides, x->ndim, qr_width(x->dtype)));
    if (!copy) return NULL;
    r->memory[r->owned++] = copy;
    qr_rows(copy, strides, x->data, has, x->sizes, x->ndim, qr_width(x->dtype));
    return copy;
}

/* Write new values into an input where the caller has it. */
static void qr_give_back(const quintet_tensor* x, const void* from, const int64_t* strides) {
    int64_t own[QR_MOST];
    if (!x->strides) qr_row_major(x->sizes, x->ndim, own);
    if (from != x->data)
        qr_rows(x->data, x->strides ? x->strides : own, from, strides, x->sizes, x->ndim, qr_width(x->dtype));
}

static void qr_output_given(quintet_result* r, int64_t at, const quintet_tensor* x) {
    int64_t own[QR_MOST];
    if (!x->strides) qr_row_major(x->sizes, x->ndim, own);
    qr_output_set(r, at, x->data, x->dtype, x->ndim, x->sizes, x->strides ? x->strides : own);
}

/* A value for an output that is no tensor of the program's: a size. */
static int qr_output_size(quintet_result* r, int64_t at, int64_t value) {
    int64_t* place = qr_new(sizeof(*place));
    if (!place) return -1;
    *place = value;
    r->memory[r->owned++] = place;
    qr_output_set(r, at, place, QUINTET_INT64, 0, NULL, NULL);
    return 0;
}

API int64_t quintet_result_count(const quintet_result* r) { return r ? r->count : 0; }
API const quintet_tensor* quintet_result_get(const quintet_result* r, int64_t at) {
    return r && at >= 0 && at < r->count ? &r->outputs[at].tensor : NULL;
}
API void quintet_error_free(char* error) { free(error); }
