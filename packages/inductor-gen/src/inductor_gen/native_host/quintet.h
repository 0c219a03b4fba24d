/* The C interface of a packaged program. One library per package; it links no Python.
 *
 * Functions that can fail take `char** error` (or NULL): where they fail they put a text there, which the caller gives
 * back with quintet_error_free. A model may be run from several threads at once; a program that writes its own buffers
 * (a cache, running statistics) runs one call after the other. */
#ifndef QUINTET_H
#define QUINTET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    QUINTET_UINT8 = 0, QUINTET_INT8 = 1, QUINTET_INT16 = 2, QUINTET_INT32 = 3, QUINTET_INT64 = 4, QUINTET_FLOAT16 = 5,
    QUINTET_FLOAT32 = 6, QUINTET_FLOAT64 = 7, QUINTET_BOOL = 11, QUINTET_BFLOAT16 = 15
};

typedef struct quintet_tensor {
    void* data;             /* of the first element */
    int32_t dtype;          /* one of the above */
    int32_t ndim;
    const int64_t* sizes;
    const int64_t* strides; /* in elements; NULL: row-major */
} quintet_tensor;

typedef struct quintet_model quintet_model;
typedef struct quintet_result quintet_result;

/* Read the weights, `weights.safetensors` in the package's folder or the file named so; NULL if it fails. */
quintet_model* quintet_model_load(const char* folder_or_weights, char** error);
void quintet_model_free(quintet_model* model); /* when no call runs and no result of it is needed any more */

int64_t quintet_model_input_count(const quintet_model* model);
const char* quintet_model_input_name(const quintet_model* model, int64_t at);  /* NULL behind the last one */
int64_t quintet_model_output_count(const quintet_model* model);
const char* quintet_model_output_name(const quintet_model* model, int64_t at); /* NULL behind the last one */

/* Run the program on as many inputs as it takes, in the order of their names; 0, or another number if it fails, and then
 * there is no result. Inputs that the program writes are written in place, and share no memory with others. */
int quintet_model_run(quintet_model* model, const quintet_tensor* inputs, int64_t count, quintet_result** result,
                      char** error);

/* What a call gave. A tensor is there until its result is freed; one that is an input's or a weight's, or a view of it,
 * has that memory. */
int64_t quintet_result_count(const quintet_result* result);
const quintet_tensor* quintet_result_get(const quintet_result* result, int64_t at); /* NULL behind the last one */
void quintet_result_free(quintet_result* result);
void quintet_error_free(char* error);

#ifdef __cplusplus
}
#endif
#endif
