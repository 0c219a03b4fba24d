// The C interface from C++: a package's names, and one call on zeros.
//
//     c++ client.cpp -I PACKAGE/native -L PACKAGE/native -lprogram -Wl,-rpath,PACKAGE/native -o client
//     ./client PACKAGE SIZE...
//
// takes a program of one float32 input of these sizes.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "quintet.h"

struct Free {
    void operator()(quintet_model* m) const { quintet_model_free(m); }
    void operator()(quintet_result* r) const { quintet_result_free(r); }
};

static void check(bool good, char*& error) {
    if (good) return;
    std::string text = error ? error : "no reason given";
    quintet_error_free(error);
    throw std::runtime_error(text);
}

int main(int argc, char** argv) try {
    char* error = nullptr;
    std::unique_ptr<quintet_model, Free> model(quintet_model_load(argc > 1 ? argv[1] : ".", &error));
    check(model != nullptr, error);
    for (int64_t k = 0; k < quintet_model_input_count(model.get()); k++)
        std::cout << "takes " << quintet_model_input_name(model.get(), k) << "\n";
    std::vector<int64_t> sizes;
    int64_t number = 1;
    for (int k = 2; k < argc; k++) sizes.push_back(std::atoll(argv[k])), number *= sizes.back();
    std::vector<float> values(static_cast<size_t>(number), 0.0f);
    quintet_tensor x{values.data(), QUINTET_FLOAT32, static_cast<int32_t>(sizes.size()), sizes.data(), nullptr};
    quintet_result* made = nullptr;
    check(quintet_model_run(model.get(), &x, 1, &made, &error) == 0, error);
    std::unique_ptr<quintet_result, Free> result(made);
    for (int64_t k = 0; k < quintet_result_count(made); k++) {
        const quintet_tensor* y = quintet_result_get(made, k);
        std::cout << "gives " << quintet_model_output_name(model.get(), k) << "[";
        for (int32_t d = 0; d < y->ndim; d++) std::cout << (d ? ", " : "") << y->sizes[d];
        std::cout << "]\n";
    }
    return 0;
} catch (const std::exception& failed) {
    std::cerr << failed.what() << "\n";
    return 1;
}
