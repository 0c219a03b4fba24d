/* The functions of quintet.h; the program's tables and `qr_program` stand before this. */

static const char* qr_unsuitable(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
#define QR_NEEDS(what) if (!__builtin_cpu_supports(what)) return what;
    QR_PROCESSOR
#endif
    return NULL;
}

API void quintet_model_free(quintet_model* m) {
    if (!m) return;
#ifdef QR_TORCH
    for (int64_t k = 0; m->views && k < QR_VIEWS; k++) qr_delete(&m->views[k]);
#endif
    for (int64_t k = 0; m->weights && k < QR_WEIGHTS; k++) free(m->weights[k]);
    while (m->arenas) {
        qr_arena* next = m->arenas->next;
        free(m->arenas->memory);
        free(m->arenas);
        m->arenas = next;
    }
    free(m->views);
    free(m->weights);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->turn);
    free(m);
}

API quintet_model* quintet_model_load(const char* path, char** error) {
    if (error) *error = NULL;
    const char* lacks = qr_unsuitable();
    if (lacks) {
        qr_fail(error, "the package was compiled for a processor with %s, which this one lacks: package it here", lacks);
        return NULL;
    }
    quintet_model* m = path ? calloc(1, sizeof(*m)) : NULL;
    if (!m) {
        qr_fail(error, path ? "there is no memory for a model" : "no folder is given");
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->turn, NULL);
    m->weights = calloc(QR_WEIGHTS + 1, sizeof(*m->weights));
    m->views = calloc(QR_VIEWS + 1, sizeof(*m->views));
    int failed = !m->weights || !m->views || qr_weights(path, qr_weight_table, QR_WEIGHTS, m->weights, error);
#ifdef QR_TORCH
    if (!failed && qr_views(m)) {
        qr_fail(error, "PyTorch refused a tensor: %s", qr_said());
        failed = 1;
    }
#endif
    if (!failed) return m;
    quintet_model_free(m);
    return NULL;
}

API int64_t quintet_model_input_count(const quintet_model* m) { return m ? QR_INPUTS : 0; }
API const char* quintet_model_input_name(const quintet_model* m, int64_t at) {
    return m && at >= 0 && at < QR_INPUTS ? qr_input_table[at].name : NULL;
}
API int64_t quintet_model_output_count(const quintet_model* m) { return m ? QR_OUTPUTS : 0; }
API const char* quintet_model_output_name(const quintet_model* m, int64_t at) {
    return m && at >= 0 && at < QR_OUTPUTS ? qr_output_names[at] : NULL;
}

API void quintet_result_free(quintet_result* r) {
    if (!r) return;
#ifdef QR_TORCH
    for (int64_t k = 0; k < r->held; k++) qr_delete(&r->handles[k]);
#endif
    for (int64_t k = 0; k < r->owned; k++) free(r->memory[k]);
    free(r->outputs);
    free(r->memory);
    free(r->handles);
    free(r);
}

API int quintet_model_run(quintet_model* m, const quintet_tensor* inputs, int64_t count, quintet_result** result,
                          char** error) {
    int64_t dims[QR_DIMS + 1];
    if (error) *error = NULL;
    if (result) *result = NULL;
    if (!m || !result) {
        qr_fail(error, m ? "there is no place for the result" : "there is no model");
        return 1;
    }
    if (qr_check(qr_input_table, QR_INPUTS, qr_dim_table, dims, QR_DIMS, inputs, count, error)) return 1;
    quintet_result* r = qr_result_new(QR_OUTPUTS, QR_OWNED, QR_HELD);
    if (!r) {
        qr_fail(error, "there is no memory for a result");
        return 1;
    }
    qr_arena* arena = NULL;
    if (QR_WRITES) pthread_mutex_lock(&m->turn);
#ifdef QR_TORCH
    const _Bool grad = aoti_torch_grad_mode_is_enabled();
    aoti_torch_grad_mode_set_enabled(0);
#endif
    const int failed = qr_program(m, inputs, dims, r, &arena, error);
#ifdef QR_TORCH
    aoti_torch_grad_mode_set_enabled(grad);
#endif
    if (QR_WRITES) pthread_mutex_unlock(&m->turn);
    qr_arena_give(m, arena);
    if (failed) quintet_result_free(r);
    else *result = r;
    return failed;
}
