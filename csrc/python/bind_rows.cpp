// Attention and the row operations as functions of addresses and sizes. Shapes are the caller's to check;
// the values of indices are checked here.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "address.h"
#include "attention/attention.h"
#include "program.h"
#include "registrations.h"
#include "rows/rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

// Throws std::out_of_range, Python's IndexError, unless 0 <= cells[i] < capacity for all i.
void check_cells(const int32_t* cells, int64_t count, int64_t capacity) {
    int32_t least = 0, most = -1;
    for (int64_t i = 0; i < count; i++) {
        least = cells[i] < least ? cells[i] : least;
        most = cells[i] > most ? cells[i] : most;
    }
    if (least < 0 || most >= capacity) {
        throw std::out_of_range("cell " + std::to_string(least < 0 ? least : most) + " is not among the " +
                                std::to_string(capacity) + " cells there are");
    }
}

// The same for the cells each row names, which are a small part of a long table.
void check_lists(const AttentionCall& call, int64_t listed, int64_t capacity) {
    int64_t checked = 0;   // entries from the row's start that an earlier row with this start named
    for (int64_t i = 0; i < call.rows; i++) {
        const int64_t start = call.starts[i], count = call.counts[i];
        if (start < 0 || count < 0 || start + count > listed) {
            throw std::out_of_range("row " + std::to_string(i) + " names cells " + std::to_string(start) + " to " +
                                    std::to_string(start + count) + " of a list of " + std::to_string(listed));
        }
        if (i == 0 || start != call.starts[i - 1]) checked = 0;
        if (count > checked) check_cells(call.cells + start + checked, count - checked, capacity);
        checked = std::max(checked, count);
    }
}

void bind_attention(uintptr_t q, uintptr_t keys, int key_type, uintptr_t values, int value_type, uintptr_t cells,
                    uintptr_t starts, uintptr_t counts, uintptr_t sinks, uintptr_t out, int rows, int heads,
                    int kv_heads, int dim, int value_dim, int64_t capacity, int64_t listed, float scale,
                    float softcap) {
    const AttentionCall call = {at<float>(q),        at<void>(keys),     at<void>(values), at<int32_t>(cells),
                                at<int32_t>(starts), at<int32_t>(counts), at<float>(sinks), at<float>(out),
                                rows,                heads,              kv_heads,         dim,
                                value_dim,           KVType(key_type),   KVType(value_type), scale,
                                softcap};
    perform("attention", [=] {
        check_lists(call, listed, capacity);
        attention(call);
    });
}

// Throws std::out_of_range unless the rows and slots named exist.
void check_states(const ShortConv& call, int64_t slots) {
    for (int64_t row = 0; row < call.rows; row++) {
        const int64_t start = call.starts[row], source = call.sources[row], target = call.targets[row];
        if (start != row && (row == 0 || start != call.starts[row - 1])) {
            throw std::out_of_range("row " + std::to_string(row) + " goes on with rows from " + std::to_string(start) +
                                    ", but the row before it does not");
        }
        if (source < 0 || source >= slots || target < -1 || target >= slots) {
            throw std::out_of_range("row " + std::to_string(row) + " reads state " + std::to_string(source) +
                                    " and writes state " + std::to_string(target) + " of " + std::to_string(slots));
        }
    }
}

}  // namespace

void register_rows(nb::module_& m) {
    m.def("attention", &bind_attention, "q"_a, "keys"_a, "key_type"_a, "values"_a, "value_type"_a, "cells"_a,
          "starts"_a, "counts"_a, "sinks"_a, "out"_a, "rows"_a, "heads"_a, "kv_heads"_a, "dim"_a, "value_dim"_a,
          "capacity"_a, "listed"_a, "scale"_a, "softcap"_a,
          "Attention over index lists; raises IndexError for cells that do not exist.");
    m.def(
        "rms_norm",
        [](uintptr_t x, uintptr_t residual, uintptr_t weight, float eps, int64_t rows, int64_t width, uintptr_t sum,
           uintptr_t y) {
            perform("rms_norm", [=] {
                rms_norm(at<float>(x), at<float>(residual), at<float>(weight), eps, rows, width, at<float>(sum),
                         at<float>(y));
            });
        },
        "x"_a, "residual"_a, "weight"_a, "eps"_a, "rows"_a, "width"_a, "sum"_a, "y"_a,
        "RMS norm of rows, of x + residual when residual is not 0.");
    m.def(
        "layer_norm",
        [](uintptr_t x, uintptr_t weight, uintptr_t bias, float eps, int64_t rows, int64_t width, uintptr_t y) {
            perform("layer_norm", [=] {
                layer_norm(at<float>(x), at<float>(weight), at<float>(bias), eps, rows, width, at<float>(y));
            });
        },
        "x"_a, "weight"_a, "bias"_a, "eps"_a, "rows"_a, "width"_a, "y"_a,
        "Layer norm of rows; with bias 0 nothing is added.");
    m.def(
        "rope",
        [](uintptr_t x, uintptr_t positions, uintptr_t axes, uintptr_t frequencies, float magnitude, bool neox,
           int64_t rows, int64_t heads, int64_t dim, int64_t pairs, int64_t axis_count) {
            perform("rope", [=] {
                rope(at<float>(x), at<int32_t>(positions), at<int32_t>(axes), at<float>(frequencies), magnitude, neox,
                     rows, heads, dim, pairs, axis_count);
            });
        },
        "x"_a, "positions"_a, "axes"_a, "frequencies"_a, "magnitude"_a, "neox"_a, "rows"_a, "heads"_a, "dim"_a,
        "pairs"_a, "axis_count"_a, "Rotary embedding, in place; with axes 0 a row has one position.");
    m.def(
        "swiglu",
        [](uintptr_t gate, uintptr_t up, int64_t count, uintptr_t y) {
            perform("swiglu", [=] { swiglu(at<float>(gate), at<float>(up), count, at<float>(y)); });
        },
        "gate"_a, "up"_a, "count"_a, "y"_a, "silu(gate) * up.");
    m.def(
        "geglu",
        [](uintptr_t gate, uintptr_t up, int64_t count, uintptr_t y) {
            perform("geglu", [=] { geglu(at<float>(gate), at<float>(up), count, at<float>(y)); });
        },
        "gate"_a, "up"_a, "count"_a, "y"_a, "gelu(gate) * up, GELU by its approximation with tanh.");
    m.def(
        "gelu",
        [](uintptr_t x, int64_t count, uintptr_t y) {
            perform("gelu", [=] { gelu(at<float>(x), count, at<float>(y)); });
        },
        "x"_a, "count"_a, "y"_a, "GELU, exactly.");
    m.def(
        "softcap",
        [](uintptr_t x, float cap, int64_t count, uintptr_t y) {
            perform("softcap", [=] { softcap(at<float>(x), cap, count, at<float>(y)); });
        },
        "x"_a, "cap"_a, "count"_a, "y"_a, "cap * tanh(x / cap).");
    m.def(
        "temper",
        [](uintptr_t x, uintptr_t positions, double scale, double floor_scale, int64_t rows, int64_t width) {
            perform("temper",
                    [=] { temper(at<float>(x), at<int32_t>(positions), scale, floor_scale, rows, width); });
        },
        "x"_a, "positions"_a, "scale"_a, "floor_scale"_a, "rows"_a, "width"_a,
        "Attention temperature tuning of rows, in place.");
    m.def(
        "add",
        [](uintptr_t a, uintptr_t b, int64_t count, uintptr_t y) {
            perform("add", [=] { add(at<float>(a), at<float>(b), count, at<float>(y)); });
        },
        "a"_a, "b"_a, "count"_a, "y"_a, "a + b.");
    m.def(
        "multiply",
        [](uintptr_t a, uintptr_t b, int64_t count, uintptr_t y) {
            perform("multiply", [=] { multiply(at<float>(a), at<float>(b), count, at<float>(y)); });
        },
        "a"_a, "b"_a, "count"_a, "y"_a, "a * b.");
    m.def(
        "scale",
        [](uintptr_t a, float factor, int64_t count, uintptr_t y) {
            perform("scale", [=] { scale(at<float>(a), factor, count, at<float>(y)); });
        },
        "a"_a, "factor"_a, "count"_a, "y"_a, "a * factor.");
    m.def(
        "short_conv",
        [](uintptr_t projected, uintptr_t weights, uintptr_t bias, uintptr_t states, uintptr_t starts,
           uintptr_t sources, uintptr_t targets, uintptr_t y, int64_t rows, int64_t channels, int64_t taps,
           int64_t slots) {
            const ShortConv call = {at<float>(projected), at<float>(weights),   at<float>(bias),
                                    at<float>(states),    at<int32_t>(starts),  at<int32_t>(sources),
                                    at<int32_t>(targets), at<float>(y),         rows,
                                    channels,             taps};
            perform("short_conv", [=] {
                check_states(call, slots);
                short_conv(call);
            });
        },
        "projected"_a, "weights"_a, "bias"_a, "states"_a, "starts"_a, "sources"_a, "targets"_a, "y"_a, "rows"_a,
        "channels"_a, "taps"_a, "slots"_a,
        "Gated short convolution; raises IndexError for rows and states that do not exist.");
    m.def(
        "store_rows",
        [](uintptr_t target, int type, uintptr_t cells, uintptr_t from, int64_t rows, int64_t width,
           int64_t capacity) {
            perform("store_rows", [=] {
                check_cells(at<int32_t>(cells), rows, capacity);
                store_rows(at<void>(target), KVType(type), at<int32_t>(cells), at<float>(from), rows, width);
            });
        },
        "target"_a, "type"_a, "cells"_a, "source"_a, "rows"_a, "width"_a, "capacity"_a,
        "Writes rows of floats to cells; raises IndexError for cells that do not exist.");
}

}  // namespace puna
