// Experts and their router as functions of addresses and sizes.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "address.h"
#include "experts/experts.h"
#include "program.h"
#include "registrations.h"
#include "experts/route.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

void check_chosen(const int32_t* chosen, int64_t places, int64_t count) {
    for (int64_t i = 0; i < places; i++) {
        if (chosen[i] < 0 || chosen[i] >= count) {
            throw std::out_of_range("expert " + std::to_string(chosen[i]) + " is not among the " +
                                    std::to_string(count) + " experts there are");
        }
    }
}

void bind_experts(const PackedMatrix& gate, const PackedMatrix& up, const PackedMatrix& down, uintptr_t gate_bias,
                  uintptr_t up_bias, uintptr_t down_bias, int64_t count, int activation, bool scale_inputs,
                  uintptr_t x, uintptr_t chosen, uintptr_t shares, int64_t tokens, int64_t per_token, uintptr_t out) {
    if (count < 1 || gate.rows() != count * down.columns() || up.rows() != gate.rows() || down.rows() % count ||
        up.columns() != gate.columns()) {
        throw nb::value_error("experts: the matrices do not fit together");
    }
    const Experts layer = {count, &gate, &up, &down, at<float>(gate_bias), at<float>(up_bias), at<float>(down_bias),
                           static_cast<Gate>(activation), scale_inputs};
    perform("experts", [=] {
        check_chosen(at<int32_t>(chosen), tokens * per_token, count);
        experts(layer, at<float>(x), at<int32_t>(chosen), at<float>(shares), tokens, per_token, at<float>(out));
    });
}

void bind_route(uintptr_t logits, uintptr_t bias, int64_t tokens, int64_t count, int64_t per_token, bool sigmoid,
                bool normalize, float scale, uintptr_t chosen, uintptr_t shares) {
    const Routing routing = {count, per_token, sigmoid, normalize, scale, at<float>(bias)};
    perform("route", [=] { route(routing, at<float>(logits), tokens, at<int32_t>(chosen), at<float>(shares)); });
}

}  // namespace

void register_experts(nb::module_& m) {
    m.def("experts", &bind_experts, "gate"_a, "up"_a, "down"_a, "gate_bias"_a, "up_bias"_a, "down_bias"_a, "count"_a,
          "activation"_a, "scale_inputs"_a, "x"_a, "chosen"_a, "shares"_a, "tokens"_a, "per_token"_a, "out"_a,
          "Feed-forward networks chosen per token, the matrices of all `count` experts one below the other.\n\n"
          "0 stands for no bias. Raises IndexError for experts that do not exist.");
    m.def("route", &bind_route, "logits"_a, "bias"_a, "tokens"_a, "count"_a, "per_token"_a, "sigmoid"_a,
          "normalize"_a, "scale"_a, "chosen"_a, "shares"_a,
          "Writes the int32 numbers of the best experts of each token and their float32 shares.");
}

}  // namespace puna
