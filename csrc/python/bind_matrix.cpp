#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "bind_array.h"
#include "core/pool.h"
#include "matrix/linear.h"
#include "matrix/pack.h"
#include "program.h"
#include "registrations.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

std::vector<NewArray<float>> bind_linear(Argument x_, const std::vector<const PackedMatrix*>& matrices,
                     const std::vector<OptionalArgument>& biases) {
    if (biases.size() != matrices.size()) {
        throw nb::value_error(("linear: " + std::to_string(matrices.size()) + " weights and " +
                               std::to_string(biases.size()) + " biases")
                                  .c_str());
    }
    const auto x = array<float>(x_, "linear x");
    std::vector<NewArray<float>> results;
    std::vector<Product> products;
    products.reserve(matrices.size());
    for (size_t i = 0; i < matrices.size(); i++) {
        const PackedMatrix* matrix = matrices[i];
        const auto bias = optional_array<float>(biases[i], "linear bias");
        if (x.dims != 2 || x.shape[1] != matrix->columns() || (bias.given() && !bias.is({matrix->rows()}))) {
            throw nb::value_error(("linear: x " + shape_text(x_) +
                                   (bias.given() ? " and bias " + shape_text(biases[i].argument()) + " do" : " does") +
                                   " not fit a weight [" + std::to_string(matrix->rows()) + ", " +
                                   std::to_string(matrix->columns()) + "]")
                                      .c_str());
        }
        auto y = new_array<float>({x.shape[0], static_cast<intptr_t>(matrix->rows())});
        products.push_back({matrix, bias.data, y.data});
        results.push_back(y);
    }
    perform("linear", [products = std::move(products), x] { linear(products, x.data, x.shape[0], x.shape[1]); });
    return results;
}

NewArray<float> bind_linear_heads(Argument x_, const std::vector<const PackedMatrix*>& heads) {
    const auto x = array<float>(x_, "linear_heads x");
    const int64_t rows = heads.empty() ? 0 : heads[0]->rows(), columns = heads.empty() ? 0 : heads[0]->columns();
    bool fits = x.dims == 3 && x.shape[1] == static_cast<intptr_t>(heads.size()) && x.shape[2] == columns;
    for (const PackedMatrix* head : heads) fits = fits && head->rows() == rows && head->columns() == columns;
    if (!fits) {
        std::string shapes;
        for (const PackedMatrix* head : heads) {
            shapes += (shapes.empty() ? "" : ", ") + ("[" + std::to_string(head->rows())) + ", " +
                      std::to_string(head->columns()) + "]";
        }
        throw nb::value_error(("linear_heads: x " + shape_text(x_) + " needs as many matrices of one shape as it has "
                               "heads, not " + (shapes.empty() ? "none" : shapes))
                                  .c_str());
    }
    auto y = new_array<float>({x.shape[0], x.shape[1], static_cast<intptr_t>(rows)});
    perform("linear_heads", [heads, x, out = y.data] { linear_heads(heads, x.data, x.shape[0], out); });
    return y;
}

// Throws std::out_of_range, Python's IndexError, unless all `ids` are below `rows`.
void check_rows(const Array<int32_t>& ids, int64_t rows) {
    for (int64_t i = 0; i < ids.size; i++) {
        if (ids.data[i] < 0 || ids.data[i] >= rows) {
            throw std::out_of_range("the matrix has " + std::to_string(rows) + " rows, asked for row " +
                                    std::to_string(ids.data[i]));
        }
    }
}

// Rows `ids` of a matrix [rows, columns] in the file's format.
NewArray<float> bind_embed(Argument data_, int type, int64_t rows, int64_t columns, Argument ids_) {
    const auto of_type = static_cast<FileType>(type);
    const BlockType* of = block_type(of_type);
    if (!of) throw nb::value_error("this type has no native dequantisation");
    const auto data = array<uint8_t>(data_, "embedding weight");
    const auto ids = array<int32_t>(ids_, "embedding tokens");
    const int64_t row_bytes = columns / of->elements * of->bytes;
    if (ids.dims != 1 || data.size != rows * row_bytes) {
        throw misfit("embedding", {{"tokens", ids_}, {"weight bytes", data_}});
    }
    auto y = new_array<float>({ids.shape[0], static_cast<intptr_t>(columns)});
    perform("embed", [=, tokens = ids.size, out = y.data] {
        check_rows(ids, rows);
        parallel_ranges(tokens, 16, [&](int64_t begin, int64_t end, int) {
            for (int64_t t = begin; t < end; t++) {
                dequantize_row(of_type, data.data + ids.data[t] * row_bytes, columns, out + t * columns);
            }
        });
    });
    return y;
}

NewArray<float> unpack_rows(const PackedMatrix& self, Argument ids_) {
    const auto ids = array<int32_t>(ids_, "rows");
    if (ids.dims != 1) throw misfit("unpack_rows", {{"rows", ids_}});
    auto y = new_array<float>({ids.shape[0], static_cast<intptr_t>(self.columns())});
    perform("unpack_rows", [=, matrix = &self, out = y.data] {
        check_rows(ids, matrix->rows());
        parallel_ranges(ids.size, 16, [&](int64_t begin, int64_t end, int) {
            for (int64_t i = begin; i < end; i++) matrix->unpack_row(ids.data[i], out + i * matrix->columns());
        });
    });
    return y;
}

}  // namespace

void register_matrix(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "Matrix", "A matrix [rows, columns] in the layout of the kernels. Immutable.")
        .def(
            "__init__",
            [](PackedMatrix* self, Argument data_, int type, int64_t rows, int64_t columns) {
                const auto data = array<uint8_t>(data_, "matrix data");
                nb::gil_scoped_release release;
                new (self) PackedMatrix(data.data, data.size, static_cast<FileType>(type), rows, columns);
            },
            "data"_a, "type"_a, "rows"_a, "columns"_a,
            "Packs the bytes `data` of a GGUF type. Raises ValueError when there are too many or too few.")
        .def_prop_ro("rows", &PackedMatrix::rows)
        .def_prop_ro("columns", &PackedMatrix::columns)
        .def_prop_ro("nbytes", &PackedMatrix::bytes)
        .def("unpack_rows", &unpack_rows, "ids"_a,
             "The rows `ids` (int32) as float32 [count, columns]; raises IndexError for rows that do not exist.");
    m.def(
        "can_decode", [](int type) { return block_type(static_cast<FileType>(type)) != nullptr; }, "type"_a,
        "Whether matrices of this GGUF type can be packed and embedded without converting them first.");
    m.def("linear", &bind_linear, "x"_a, "matrices"_a, "biases"_a,
          "x [tokens, columns] @ matrices[i].T + biases[i]: [tokens, rows] for each matrix; a bias may be None.");
    m.def("linear_heads", &bind_linear_heads, "x"_a, "heads"_a,
          "x [tokens, heads, columns] with a matrix [rows, columns] for each head: [tokens, heads, rows].");
    m.def("embed", &bind_embed, "data"_a, "type"_a, "rows"_a, "columns"_a, "ids"_a,
          "The rows `ids` (int32) of a matrix [rows, columns] as the file has it: float32 [tokens, columns].\n\n"
          "Raises IndexError for rows that do not exist.");
}

}  // namespace puna
