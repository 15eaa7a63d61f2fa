// A layer of experts: each token passes through the few feed-forward networks that a router chose for it.
#pragma once
#include <cstdint>

#include "matrix/pack.h"

namespace puna {

// Activations of gate and up, or, without gates, of up alone; see RowKernels.
enum class Activation : int { swiglu, clamped_swiglu, geglu, reglu, gelu, squared_relu };
constexpr bool has_gate(Activation a) { return a < Activation::gelu; }

// The matrices of all experts lie below each other in one packed matrix: expert e of `count` has the rows [e * rows /
// count, (e + 1) * rows / count).
struct Experts {
    int64_t count;
    const PackedMatrix *gate, *up;   // [count * width, columns]; gate may be null
    const PackedMatrix* down;        // [count * rows, width]
    const float *gate_bias, *up_bias, *down_bias;   // [count, width] twice and [count, rows], or null
    Activation activation;   // uses a gate if there is one
    bool scale_inputs;   // whether a share multiplies an expert's input instead of its output
    float gate_limit, up_limit;   // of gates from above, and of ups on both sides, before the activation; 0: none
};

// y [tokens, rows] = for each token the sum over its `per_token` chosen experts of
//     share * (down(activation(gate(x), up(x))))    or    down(activation(gate(share * x), up(share * x)))
// or, without gates, of the same with activation(up(...)),
// with x [tokens, columns], and chosen (in [0, count)) and shares [tokens, per_token]. The weights of experts that
// no token chose are not read. Every row of y depends on its rows of x, chosen and shares alone, bit for bit.
void experts(const Experts& layer, const float* x, const int32_t* chosen, const float* shares, int64_t tokens,
             int64_t per_token, float* y);

// y [tokens, rows] = each token of x [tokens, columns] times the matrix of the one expert chosen for it, plus that
// expert's bias [count, rows] unless it is null: the single products of the above, bit for bit.
void expert_linear(const PackedMatrix& stack, const float* bias, int64_t count, const float* x, const int32_t* chosen,
                   int64_t tokens, float* y);

}  // namespace puna
