// Experts and their router.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "bind_array.h"
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
            throw std::out_of_range("there are " + std::to_string(count) + " experts, and no expert " +
                                    std::to_string(chosen[i]));
        }
    }
}

NewArray<float> bind_experts(const PackedMatrix* gate, const PackedMatrix& up, const PackedMatrix& down,
                        OptionalArgument gate_bias_, OptionalArgument up_bias_, OptionalArgument down_bias_,
                        int64_t count, int activation, bool scale_inputs, float gate_limit, float up_limit,
                        Argument x_, Argument chosen_, Argument weights_) {
    if (count < 1 || up.rows() != count * down.columns() || down.rows() % count ||
        (gate && (gate->rows() != up.rows() || gate->columns() != up.columns()))) {
        throw nb::value_error("experts: the matrices do not fit together");
    }
    const auto kind = static_cast<Activation>(activation);
    if (kind < Activation::swiglu || kind > Activation::squared_relu || has_gate(kind) != (gate != nullptr)) {
        throw nb::value_error("experts: the activation does not go with the matrices");
    }
    if (!(gate_limit >= 0) || !(up_limit >= 0) || (gate_limit > 0) != (up_limit > 0) || (up_limit > 0 && !gate)) {
        throw nb::value_error("experts: limits must be positive, and need gates");
    }
    const auto x = array<float>(x_, "experts x"), weights = array<float>(weights_, "experts weights");
    const auto chosen = array<int32_t>(chosen_, "experts chosen");
    if (x.dims != 2 || x.shape[1] != up.columns() || chosen.dims != 2 || chosen.shape[0] != x.shape[0] ||
        !weights.same_shape(chosen.shape, chosen.dims)) {
        throw misfit("experts", {{"x", x_}, {"chosen", chosen_}, {"weights", weights_}});
    }
    const auto gate_bias = optional_array<float>(gate_bias_, "experts gate bias"),
               up_bias = optional_array<float>(up_bias_, "experts up bias"),
               down_bias = optional_array<float>(down_bias_, "experts down bias");
    if ((gate_bias.given() && gate_bias.size != (gate ? gate->rows() : 0)) || 
        (up_bias.given() && up_bias.size != up.rows()) || (down_bias.given() && down_bias.size != down.rows())) {
        throw misfit("experts", {{"gate bias", gate_bias_.argument()}, {"up bias", up_bias_.argument()},
                                 {"down bias", down_bias_.argument()}});
    }
    auto y = new_array<float>({x.shape[0], static_cast<intptr_t>(down.rows() / count)});
    const Experts layer = {count, gate, &up, &down, gate_bias.data, up_bias.data, down_bias.data, kind, scale_inputs,
                           gate_limit, up_limit};
    perform("experts", [=, tokens = x.shape[0], used = chosen.shape[1], out = y.data] {
        check_chosen(chosen.data, tokens * used, count);
        experts(layer, x.data, chosen.data, weights.data, tokens, used, out);
    });
    return y;
}

NewArray<float> bind_expert_linear(const PackedMatrix& stack, OptionalArgument bias_, int64_t count, Argument x_,
                                   Argument chosen_) {
    const auto x = array<float>(x_, "expert_linear x");
    const auto chosen = array<int32_t>(chosen_, "expert_linear chosen");
    const auto bias = optional_array<float>(bias_, "expert_linear bias");
    if (count < 1 || stack.rows() % count || x.dims != 2 || x.shape[1] != stack.columns() ||
        !chosen.is({x.shape[0]}) || (bias.given() && bias.size != stack.rows())) {
        throw misfit("expert_linear", {{"x", x_}, {"chosen", chosen_}, {"bias", bias_.argument()}});
    }
    auto y = new_array<float>({x.shape[0], static_cast<intptr_t>(stack.rows() / count)});
    perform("expert_linear", [=, matrix = &stack, tokens = x.shape[0], out = y.data] {
        check_chosen(chosen.data, tokens, count);
        expert_linear(*matrix, bias.data, count, x.data, chosen.data, tokens, out);
    });
    return y;
}

Scoring scoring_of(int number) {
    if (number < 0 || number > static_cast<int>(Scoring::sqrt_softplus)) {
        throw nb::value_error(("route: there are no scores numbered " + std::to_string(number)).c_str());
    }
    return static_cast<Scoring>(number);
}

std::pair<NewArray<int32_t>, NewArray<float>> bind_route(Argument logits_, OptionalArgument bias_, int64_t used,
                                                         int scoring, bool normalize, float scale, int64_t groups,
                                                         int64_t used_groups, int64_t best_of_group) {
    const auto logits = array<float>(logits_, "route logits");
    const auto bias = optional_array<float>(bias_, "route bias");
    if (logits.dims != 2 || used < 1 || used > logits.shape[1] || (bias.given() && !bias.is({logits.shape[1]}))) {
        throw nb::value_error(("route: cannot choose " + std::to_string(used) + " experts by logits " +
                               shape_text(logits_) + (bias.given() ? " and bias " + shape_text(bias_.argument()) : ""))
                                  .c_str());
    }
    const int64_t count = logits.shape[1];
    if (groups < 1 || count % groups || used_groups < 1 || used_groups > groups || best_of_group < 1 ||
        used > used_groups * (count / groups)) {
        throw nb::value_error(("route: cannot choose " + std::to_string(used) + " experts in " +
                               std::to_string(used_groups) + " of " + std::to_string(groups) + " groups of " +
                               std::to_string(count) + " experts")
                                  .c_str());
    }
    const int64_t tokens = logits.shape[0];
    auto chosen = new_array<int32_t>({logits.shape[0], static_cast<intptr_t>(used)});
    auto weights = new_array<float>({logits.shape[0], static_cast<intptr_t>(used)});
    const Routing routing = {count, used, groups, used_groups, best_of_group, scoring_of(scoring), normalize, scale,
                             bias.data};
    perform("route", [=, ids = chosen.data, out = weights.data] { route(routing, logits.data, tokens, ids, out); });
    return {chosen, weights};
}

std::pair<NewArray<int32_t>, NewArray<float>> bind_route_by_table(Argument logits_, int scoring, bool normalize,
                                                                  float scale, Argument table_, Argument tokens_) {
    const auto logits = array<float>(logits_, "route_by_table logits");
    const auto table = array<int32_t>(table_, "route_by_table table"),
               tokens = array<int32_t>(tokens_, "route_by_table tokens");
    if (logits.dims != 2 || table.dims != 2 || !tokens.is({logits.shape[0]})) {
        throw misfit("route_by_table", {{"logits", logits_}, {"table", table_}, {"tokens", tokens_}});
    }
    const int64_t rows = logits.shape[0], count = logits.shape[1], used = table.shape[1];
    auto chosen = new_array<int32_t>({logits.shape[0], static_cast<intptr_t>(used)});
    auto weights = new_array<float>({logits.shape[0], static_cast<intptr_t>(used)});
    const Routing routing = {count, used, 1, 1, 1, scoring_of(scoring), normalize, scale, nullptr};
    perform("route_by_table", [=, entries = table.shape[0], ids = chosen.data, out = weights.data] {
        for (int64_t t = 0; t < rows; t++) {
            if (tokens.data[t] < 0 || tokens.data[t] >= entries) {
                throw std::out_of_range("a table of " + std::to_string(entries) + " tokens has no token " +
                                        std::to_string(tokens.data[t]));
            }
            check_chosen(table.data + tokens.data[t] * used, used, count);
        }
        route_by_table(routing, logits.data, table.data, tokens.data, rows, ids, out);
    });
    return {chosen, weights};
}

}  // namespace

void register_experts(nb::module_& m) {
    m.def("experts", &bind_experts, "gate"_a.none(), "up"_a, "down"_a, "gate_bias"_a.none(), "up_bias"_a.none(),
          "down_bias"_a.none(), "count"_a, "activation"_a, "scale_inputs"_a, "gate_limit"_a,
          "up_limit"_a, "x"_a, "chosen"_a, "weights"_a,
          "Feed-forward networks chosen per token, the matrices of all `count` experts one below the other, gate\n"
          "being None where they have none.\n\n"
          "Raises IndexError for experts that do not exist.");
    m.def("expert_linear", &bind_expert_linear, "matrix"_a, "bias"_a.none(), "count"_a, "x"_a, "chosen"_a,
          "Rows of x through the one matrix each that was chosen for them, of `count` below each other.\n\n"
          "Raises IndexError for experts that do not exist.");
    m.def("route", &bind_route, "logits"_a, "bias"_a.none(), "used"_a, "scoring"_a, "normalize"_a, "scale"_a,
          "groups"_a, "used_groups"_a, "best_of_group"_a,
          "The int32 numbers of the best experts of each token and their float32 weights.");
    m.def("route_by_table", &bind_route_by_table, "logits"_a, "scoring"_a, "normalize"_a, "scale"_a, "table"_a,
          "tokens"_a,
          "The experts that a table has for each token, and their float32 weights.\n\n"
          "Raises IndexError for tokens and experts that do not exist.");
}

}  // namespace puna
