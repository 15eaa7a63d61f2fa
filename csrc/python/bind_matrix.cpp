#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "address.h"
#include "core/pool.h"
#include "matrix/linear.h"
#include "matrix/pack.h"
#include "program.h"
#include "registrations.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

void call_linear(const std::vector<const PackedMatrix*>& matrices, const std::vector<uintptr_t>& biases, uintptr_t x,
                 int64_t tokens, int64_t columns, const std::vector<uintptr_t>& outputs) {
    if (biases.size() != matrices.size() || outputs.size() != matrices.size()) {
        throw nb::value_error("as many biases and outputs as matrices are needed");
    }
    std::vector<Product> products;
    products.reserve(matrices.size());
    for (size_t i = 0; i < matrices.size(); i++) {
        if (matrices[i]->columns() != columns) throw nb::value_error("a matrix has another number of columns than x");
        products.push_back({matrices[i], at<const float>(biases[i]), at<float>(outputs[i])});
    }
    perform("linear", [products = std::move(products), x, tokens, columns] {
        linear(products, at<const float>(x), tokens, columns);
    });
}

// Rows that `ids` name, of a matrix [rows, columns] as the file has it.
void embed(uintptr_t data, int type, int64_t rows, int64_t columns, uintptr_t ids, int64_t tokens, uintptr_t out) {
    const auto of_type = static_cast<FileType>(type);
    const BlockType* of = block_type(of_type);
    if (!of) throw nb::value_error("this type has no native dequantisation");
    const int64_t row_bytes = columns / of->elements * of->bytes;
    perform("embed", [=] {
        const int32_t* row = at<const int32_t>(ids);
        for (int64_t t = 0; t < tokens; t++) {
            if (row[t] < 0 || row[t] >= rows) {
                throw std::out_of_range("the matrix has " + std::to_string(rows) + " rows, asked for row " +
                                        std::to_string(row[t]));
            }
        }
        parallel_ranges(tokens, 16, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                dequantize_row(of_type, at<const uint8_t>(data) + row[t] * row_bytes, columns,
                               at<float>(out) + t * columns);
            }
        });
    });
}

}  // namespace

void register_matrix(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "Matrix", "A matrix [rows, columns] in the layout of the kernels. Immutable.")
        .def(
            "__init__",
            [](PackedMatrix* self, uintptr_t data, size_t bytes, int type, int64_t rows, int64_t columns) {
                nb::gil_scoped_release release;
                new (self) PackedMatrix(at<const uint8_t>(data), bytes, static_cast<FileType>(type), rows, columns);
            },
            "data"_a, "bytes"_a, "type"_a, "rows"_a, "columns"_a,
            "Packs `bytes` bytes of a GGUF type at the address `data`. Raises ValueError on a wrong size.")
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("columns", &PackedMatrix::columns)
        .def_prop_ro("nbytes", &PackedMatrix::bytes)
        .def(
            "unpack_rows",
            [](const PackedMatrix& self, uintptr_t ids, int64_t count, uintptr_t out) {
                nb::gil_scoped_release release;
                parallel_ranges(count, 16, [&](int64_t begin, int64_t end, int) {
                    for (int64_t i = begin; i < end; i++) {
                        self.unpack_row(at<const int32_t>(ids)[i], at<float>(out) + i * self.columns());
                    }
                });
            },
            "ids"_a, "count"_a, "out"_a,
            "out [count, columns] float32 = the rows `ids` (int32, in range).");
    m.def(
        "can_decode", [](int type) { return block_type(static_cast<FileType>(type)) != nullptr; }, "type"_a,
        "Whether matrices of this GGUF type can be packed and embedded without converting them first.");
    m.def("linear", &call_linear, "matrices"_a, "biases"_a, "x"_a, "tokens"_a, "columns"_a, "outputs"_a,
          "outputs[i] [tokens, rows] = x [tokens, columns] @ matrices[i].T + biases[i].\n\n"
          "All are addresses of float32 values; 0 stands for no bias.");
    m.def("embed", &embed, "data"_a, "type"_a, "rows"_a, "columns"_a, "ids"_a, "tokens"_a, "out"_a,
          "out [tokens, columns] float32 = the rows `ids` (int32) of a matrix [rows, columns] as the file has it.\n\n"
          "Raises IndexError for rows there are not.");
}

}  // namespace puna
