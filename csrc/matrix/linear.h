// Products of several matrices with the same activations.
#pragma once
#include <cstdint>
#include <vector>

#include "matrix/pack.h"

namespace puna {

struct Product {
    const PackedMatrix* matrix;   // [rows, columns]
    const float* bias;            // [rows], or null
    float* y;                     // [tokens, rows]
};

// y = x @ matrix.T + bias for each product; x is [tokens, columns], float32, and shared. It is quantised once for all
// matrices that need it. Every row of y depends only on its row of x, bit for bit, whatever the number of tokens and
// threads. A NaN or infinity in a row of x makes that row of y NaN with quantised matrices; float matrices follow IEEE
// arithmetic, except that 16-bit ones on a processor with AMX make the row NaN or infinite.
void linear(const std::vector<Product>& products, const float* x, int64_t tokens, int64_t columns);

// The same with a separate matrix for each head, all [rows, columns]: y [tokens, heads, rows] = for each token and head
// h its part of x [tokens, heads, columns] @ heads[h].T.
void linear_heads(const std::vector<const PackedMatrix*>& heads, const float* x, int64_t tokens, float* y);

}  // namespace puna
