#include <nanobind/nanobind.h>

#include <cstdint>

#include "bind_array.h"
#include "registrations.h"
#include "sample/sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {

void register_sample(nb::module_& m) {
    m.def(
        "choose",
        [](Argument logits_, double temperature, int64_t k, double typical_p, double top_p, double min_p,
           double uniform) {
            const auto logits = array<float>(logits_, "choose logits");
            nb::gil_scoped_release release;
            return choose(logits.data, logits.size,
                          {temperature, std::min(k, logits.size), typical_p, top_p, min_p, uniform});
        },
        "logits"_a, "temperature"_a, "top_k"_a, "typical_p"_a, "top_p"_a, "min_p"_a, "uniform"_a,
        "The token drawn with the random number `uniform`, or -1 when the logits allow none.");
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
