// The building blocks of products with packed matrices.
#pragma once
#include <cstdint>
#include <vector>

#include "core/scratch.h"
#include "matrix/pack.h"

namespace puna {

// The most rows of a group of any instruction set.
constexpr int64_t max_group_rows = 32;

// The form of activations that a matrix's kernels read: ActivationBlocks with scales for 256 or for 32 columns,
// SplitBlocks, WordBlocks, or float32.
enum class Form { per_256, per_32, split, words, floats };
Form form_of(const PackedMatrix& m);

// Rows of activations in one form. Blocks of the same columns are contiguous, [blocks][tokens]: so tiles of tokens are
// one stretch of memory, whereas whole rows, a round number of bytes apart, would compete for the same few cache lines.
struct ActivationRows {
    const MatrixKernels* kernels;
    Form form;
    uint8_t* first;
    int64_t columns;        // of a block
    int64_t stride, step;   // bytes from token to token, and from block to block

    ActivationRows(const PackedMatrix& m, uint8_t* memory, int64_t tokens, int64_t width);

    // Their size, including what kernels may read beyond the end.
    static int64_t bytes(const PackedMatrix& m, int64_t tokens, int64_t width);

    // The activations of token t, from which kernels read.
    const void* operator[](int64_t t) const { return first + t * stride; }

    // Converts values [column, column + count) of a token; `column` is a multiple of 256.
    void put(int64_t token, int64_t column, const float* x, int64_t count) const;
};

// y[t][i] = row i of groups [first, first + groups) times x[t], for up to token_block tokens, on the calling thread.
// x[t] points at activations in the form that the kernels of `m` read, `step` bytes from block to block.
void multiply(const PackedMatrix& m, int64_t first, int64_t groups, const void* const* x, int64_t step,
              float* const* y, int64_t tokens);

// How many row groups of `m` make a task worth handing to a thread, given the bytes of weights that all tasks together
// read and the number of tokens.
int64_t groups_per_task(const PackedMatrix& m, int64_t bytes, int64_t tokens);

// Rows [tokens, columns] of float32 in every form that the requested matrices read.
class Activations {
public:
    Activations(const float* x, int64_t tokens, int64_t columns) : x_(x), tokens_(tokens), columns_(columns) {}

    // Registers a matrix that will read the rows, and reserves the memory for its form.
    void want(const PackedMatrix& m, Scratch& scratch);

    // Computes the forms of all rows, on all threads, once for all matrices that share a form.
    void prepare(const Scratch& scratch);

    // The rows in the form that the kernels of `m` read; `m` must be registered.
    const ActivationRows& rows(const PackedMatrix& m) const;

private:
    struct Wanted {
        const PackedMatrix* matrix;   // one of the matrices that read it
        size_t reserved;
    };
    const float* x_;
    int64_t tokens_, columns_;
    std::vector<Wanted> wanted_;
    std::vector<ActivationRows> rows_;   // one per form
};

}  // namespace puna
