#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "bind_array.h"
#include "core/pool.h"
#include "registrations.h"
#include "sample/sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

// Reads a row, a puna.ops.sampling.Draw.
Draw read(const nb::tuple& row) {
    if (row.size() != 9) throw nb::value_error("choose: a row has 9 values");
    const auto number = [&](size_t i) { return nb::cast<double>(row[i]); };
    const auto logits = array<float>({nb::handle(row[0]).ptr()}, "choose logits");
    const auto allowed = optional_array<int32_t>({nb::handle(row[8]).ptr()}, "choose allowed");
    if (allowed.given() && allowed.size * 32 < logits.size) {
        throw nb::value_error("choose: there are fewer bits than logits");
    }
    Draw draw;
    draw.logits = logits.data;
    draw.count = logits.size;
    draw.allowed = reinterpret_cast<const uint32_t*>(allowed.data);
    draw.uniform = number(1);
    draw.temperature = number(2);
    draw.top_n_sigma = number(3);
    draw.top_k = nb::cast<int64_t>(row[4]);
    draw.typical_p = number(5);
    draw.top_p = number(6);
    draw.min_p = number(7);
    return draw;
}

}  // namespace

void register_sample(nb::module_& m) {
    m.def(
        "choose",
        [](nb::sequence rows) {
            std::vector<Draw> draws;
            for (nb::handle row : rows) draws.push_back(read(nb::cast<nb::tuple>(row)));
            std::vector<int64_t> tokens(draws.size());
            {
                nb::gil_scoped_release release;
                parallel_for(int64_t(draws.size()), [&](int64_t i, int) { tokens[i] = choose(draws[i]); });
            }
            nb::list chosen;
            for (const int64_t token : tokens) chosen.append(token);
            return chosen;
        },
        "rows"_a,
        "The token drawn from each row, which is a `Draw`, or -1 where its logits allow none.");
    m.def(
        "top_k",
        [](Argument logits_, int64_t k) {
            const auto logits = array<float>(logits_, "top_k logits");
            if (k < 0 || k > logits.size) throw nb::value_error("top_k: more ids wanted than there are logits");
            auto ids = new_array<int64_t>({static_cast<intptr_t>(k)});
            {
                nb::gil_scoped_release release;
                top_k(logits.data, logits.size, k, ids.data);
            }
            return ids;
        },
        "logits"_a, "k"_a, "The int64 ids of the k largest logits, descending.");
    m.def(
        "sum_of_exponentials",
        [](Argument logits_, float largest) {
            const auto logits = array<float>(logits_, "sum_of_exponentials logits");
            nb::gil_scoped_release release;
            return sample_kernels().sum(logits.data, logits.size, largest, 1.0f);
        },
        "logits"_a, "largest"_a, "Sum of e^(logit - largest).");
}

}  // namespace puna
