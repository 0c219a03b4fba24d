/* Runs a packaged program without Python:
 *
 *     cc client.c -I PACKAGE/native -L PACKAGE/native -lprogram -Wl,-rpath,PACKAGE/native -lpthread -o client
 *     ./client PACKAGE THREADS CALLS RESULTS INPUT...
 *
 * A file of tensors holds for each: int32 dtype, int32 ndim, int64 sizes..., the elements in rows. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "quintet.h"

enum { MOST = 64 };
static quintet_model* model;
static quintet_tensor inputs[MOST];
static int64_t sizes[MOST][MOST], count;
static int calls;

static int64_t width(int32_t dtype) {
    switch (dtype) {
        case QUINTET_INT16: case QUINTET_FLOAT16: case QUINTET_BFLOAT16: return 2;
        case QUINTET_INT32: case QUINTET_FLOAT32: return 4;
        case QUINTET_INT64: case QUINTET_FLOAT64: return 8;
        default: return 1;
    }
}

static int64_t elements(const quintet_tensor* x) {
    int64_t n = 1;
    for (int32_t k = 0; k < x->ndim; k++) n *= x->sizes[k];
    return n;
}

static int read_tensor(const char* path, quintet_tensor* x, int64_t* shape) {
    FILE* file = fopen(path, "rb");
    if (!file || fread(&x->dtype, 4, 1, file) != 1 || fread(&x->ndim, 4, 1, file) != 1 || x->ndim > MOST) return 1;
    if (x->ndim && fread(shape, 8, (size_t)x->ndim, file) != (size_t)x->ndim) return 1;
    x->sizes = shape;
    x->strides = NULL;
    const size_t bytes = (size_t)(elements(x) * width(x->dtype));
    if (posix_memalign(&x->data, 64, bytes ? bytes : 1) || fread(x->data, 1, bytes, file) != bytes) return 1;
    fclose(file);
    return 0;
}

static void write_rows(FILE* file, const quintet_tensor* x, int32_t dim, const char* at) {
    if (dim == x->ndim) {
        fwrite(at, 1, (size_t)width(x->dtype), file);
        return;
    }
    for (int64_t k = 0; k < x->sizes[dim]; k++) write_rows(file, x, dim + 1, at + k * x->strides[dim] * width(x->dtype));
}

static void* work(void* unused) {
    quintet_result* last = NULL;
    for (int k = 0; k < calls; k++) {
        char* error = NULL;
        quintet_result_free(last);
        if (quintet_model_run(model, inputs, count, &last, &error)) {
            fprintf(stderr, "run: %s\n", error);
            quintet_error_free(error);
            return NULL;
        }
    }
    (void)unused;
    return last;
}

int main(int argc, char** argv) {
    char* error = NULL;
    if (argc < 5) return fprintf(stderr, "usage: client PACKAGE THREADS CALLS RESULTS INPUT...\n"), 2;
    const int threads = atoi(argv[2]);
    calls = atoi(argv[3]);
    count = argc - 5;
    for (int64_t k = 0; k < count; k++)
        if (read_tensor(argv[5 + k], &inputs[k], sizes[k])) return fprintf(stderr, "cannot read %s\n", argv[5 + k]), 2;
    if (!(model = quintet_model_load(argv[1], &error))) {
        fprintf(stderr, "load: %s\n", error);
        quintet_error_free(error);
        return 3;
    }
    pthread_t started[MOST];
    void* results[MOST] = {0};
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int k = 1; k < threads; k++) pthread_create(&started[k], NULL, work, NULL);
    results[0] = work(NULL);
    for (int k = 1; k < threads; k++) pthread_join(started[k], &results[k]);
    clock_gettime(CLOCK_MONOTONIC, &to);
    const double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    FILE* file = fopen(argv[4], "wb");
    for (int k = 0; k < threads; k++) {
        if (!results[k]) return 4;
        for (int64_t n = 0; n < quintet_result_count(results[k]); n++) {
            const quintet_tensor* x = quintet_result_get(results[k], n);
            fwrite(&x->dtype, 4, 1, file), fwrite(&x->ndim, 4, 1, file);
            fwrite(x->sizes, 8, (size_t)x->ndim, file);
            write_rows(file, x, 0, x->data);
        }
        quintet_result_free(results[k]);
    }
    fclose(file);
    printf("%.3f us per call\n", 1e6 * seconds / calls);
    quintet_model_free(model);
    return 0;
}
