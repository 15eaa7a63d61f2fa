#include <nanobind/nanobind.h>

#include <cstdint>

#include "address.h"
#include "registrations.h"
#include "sample/sample.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {

void register_sample(nb::module_& m) {
    m.def(
        "choose",
        [](uintptr_t logits, int64_t count, double temperature, int64_t top_k, double typical_p, double top_p,
           double min_p, double uniform) {
            nb::gil_scoped_release release;
            return choose(at<const float>(logits), count, {temperature, top_k, typical_p, top_p, min_p, uniform});
        },
        "logits"_a, "count"_a, "temperature"_a, "top_k"_a, "typical_p"_a, "top_p"_a, "min_p"_a, "uniform"_a,
        "The token drawn with the random number `uniform`, or -1 when the logits allow none.");
    m.def(
        "top_k",
        [](uintptr_t logits, int64_t count, int64_t k, uintptr_t ids) {
            if (k > count) throw nb::value_error("top_k: more ids wanted than there are logits");
            nb::gil_scoped_release release;
            top_k(at<const float>(logits), count, k, at<int64_t>(ids));
        },
        "logits"_a, "count"_a, "k"_a, "ids"_a, "Writes the int64 ids of the k largest logits, descending.");
    m.def(
        "sum_of_exponentials",
        [](uintptr_t logits, int64_t count, float largest) {
            nb::gil_scoped_release release;
            return sample_kernels().sum(at<const float>(logits), count, largest, 1.0f);
        },
        "logits"_a, "count"_a, "largest"_a, "Sum of e^(logit - largest).");
}

}  // namespace puna
