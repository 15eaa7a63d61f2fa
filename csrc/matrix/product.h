// What products with packed matrices are put together from.
#pragma once
#include <cstdint>
#include <vector>

#include "core/scratch.h"
#include "matrix/pack.h"

namespace puna {

// The most rows of a group of any instruction set.
constexpr int64_t max_group_rows = 32;

// y[t][i] = row i of groups [first, first + groups) times x[t], for up to token_block tokens, on the calling
// thread. x[t] points at what the kernels of `m` read, as `Activations::row` gives it.
void multiply(const PackedMatrix& m, int64_t first, int64_t groups, const void* const* x, float* const* y,
              int64_t tokens);

// How many row groups of `m` make a task worth handing to a thread, given the bytes of weights that all tasks
// together read and how many tokens meet each.
int64_t groups_per_task(const PackedMatrix& m, int64_t bytes, int64_t tokens);

// Of one token with `columns` values.
inline int64_t activation_blocks(int64_t columns) { return (columns + chunk_columns - 1) / chunk_columns; }

// Quantises `columns` values of one token in the form the kernels of `m` read; not for float matrices.
inline void quantize_row(const PackedMatrix& m, const float* x, int64_t columns, ActivationBlock* blocks) {
    const MatrixKernels& kernels = m.kernels();
    const bool per_256 = scaling_of(m.layout()) == Scaling::per_256;
    (per_256 ? kernels.quantize_per_256 : kernels.quantize_per_32)(x, columns, blocks);
}

// Rows [tokens, columns] of float32 in every form that some matrices want them in: as they are, or quantised
// for a table of kernels.
class Activations {
public:
    Activations(const float* x, int64_t tokens, int64_t columns) : x_(x), tokens_(tokens), columns_(columns) {}

    // Names the matrices the rows are for, and reserves the memory for that.
    void want(const PackedMatrix& m, Scratch& scratch);

    // Quantises all rows, on all threads, once for the matrices that read the same form.
    void prepare(const Scratch& scratch);

    // What the kernels of `m`, which was wanted, read as token t's activations.
    struct Rows {
        const char* first;
        int64_t stride;   // bytes
        const void* operator[](int64_t t) const { return first + t * stride; }
    };
    Rows rows(const PackedMatrix& m) const;

private:
    struct Form {
        const PackedMatrix* matrix;   // one of those that read it
        size_t reserved;
        ActivationBlock* blocks;
    };
    const Form* form(const PackedMatrix& m) const;

    const float* x_;
    int64_t tokens_, columns_;
    std::vector<Form> forms_;
};

}  // namespace puna
