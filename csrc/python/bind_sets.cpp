#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "attention/attention.h"
#include "attention/indexer.h"
#include "core/cpu.h"
#include "matrix/pack.h"
#include "recurrent/linear_attention.h"
#include "recurrent/recurrent.h"
#include "recurrent/selective_scan.h"
#include "registrations.h"
#include "rows/rows.h"
#include "sample/sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

// Whether matrices of this type, or of every type, use the same code at both levels.
bool same_products(CpuLevel a, CpuLevel b, std::optional<int> type) {
    const MatrixKernels &of_a = matrix_kernels(a), &of_b = matrix_kernels(b);
    if (type) return same_kernels(of_a, of_b, layout_of(static_cast<FileType>(*type)));
    for (int layout = 0; layout < layout_count; layout++) {
        if (!same_kernels(of_a, of_b, static_cast<Layout>(layout))) return false;
    }
    return true;
}

bool runs_the_same(const std::string& operation, CpuLevel a, CpuLevel b, std::optional<int> type) {
    const auto is_one_of = [&](const std::vector<std::string>& names) {
        return std::find(names.begin(), names.end(), operation) != names.end();
    };
    if (is_one_of({"linear", "linear_heads", "experts", "expert_linear"})) return same_products(a, b, type);
    if (is_one_of({"attention"})) return &attention_kernels(a) == &attention_kernels(b);
    if (is_one_of({"choose_cells", "choose_blocks"})) return &indexer_kernels(a) == &indexer_kernels(b);
    if (is_one_of({"choose", "top_k", "sum_of_exponentials"})) return &sample_kernels(a) == &sample_kernels(b);
    if (is_one_of({"rms_norm", "add_rms_norm", "layer_norm", "rope", "swiglu", "clamped_swiglu", "geglu",
                   "reglu", "gelu", "squared_relu", "sigmoid_gate", "softcap", "store_rows"})) {
        return &row_kernels(a) == &row_kernels(b);
    }
    if (is_one_of({"short_conv", "pool_recent"})) return &recurrent_kernels(a) == &recurrent_kernels(b);
    if (is_one_of({"linear_attention"})) return &linear_attention_kernels(a) == &linear_attention_kernels(b);
    if (is_one_of({"selective_scan"})) return &scan_kernels(a) == &scan_kernels(b);
    if (is_one_of({"route", "embed", "temper", "add", "offset", "multiply", "scale", "softplus", "sigmoid", "signed_root",
                   "split", "join", "mix", "match_rms", "above", "balance", "pool_groups", "join_lists",
                   "route_by_table", "ngram_rows"})) {
        return true;
    }
    throw nb::value_error(("the extension has no operation '" + operation + "' that computes").c_str());
}

std::string kernel_set(const std::string& operation, const std::string& level, std::optional<int> type) {
    if (type && !block_type(static_cast<FileType>(*type))) {
        throw nb::value_error("matrices of this type are not packed");
    }
    const std::vector<CpuLevel> levels = runnable_cpu_levels();
    const auto named = [&](CpuLevel each) { return cpu_level_name(each) == level; };
    const auto of = std::find_if(levels.begin(), levels.end(), named);
    if (of == levels.end()) throw nb::value_error(("this CPU cannot run the kernels '" + level + "'").c_str());
    const auto same = [&](CpuLevel each) { return runs_the_same(operation, each, *of, type); };
    return cpu_level_name(*std::find_if(levels.begin(), of + 1, same));
}

}  // namespace

void register_sets(nb::module_& m) {
    m.def("kernel_set", &kernel_set, "operation"_a, "level"_a, "type"_a = nb::none(),
          "The first of `cpu_levels()` at which a function of this module runs the very code it runs at `level`.\n\n"
          "Operations on matrices may differ with their GGUF type; without one, all types are compared.");
}

}  // namespace puna
