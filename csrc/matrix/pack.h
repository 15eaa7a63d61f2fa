// Conversion of a GGUF file's rows to the layout of the kernels.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/memory.h"
#include "matrix/kernels.h"
#include "weights/blocks.h"

namespace puna {

// The layout for matrices of a type that block_type() knows.
Layout layout_of(FileType type);

// A matrix [rows, columns] in the layout of the kernels it was packed for. Immutable.
class PackedMatrix {
public:
    // Reads `data`, the file's rows one after another, on all threads. Throws std::invalid_argument if the type is not
    // decoded natively or `bytes` does not match the shape, std::bad_alloc if memory is short.
    PackedMatrix(const uint8_t* data, size_t bytes, FileType type, int64_t rows, int64_t columns);

    Layout layout() const { return layout_; }
    const MatrixKernels& kernels() const { return *kernels_; }
    int64_t rows() const { return rows_; }
    int64_t columns() const { return columns_; }
    int64_t groups() const { return groups_; }
    int64_t stride() const { return stride_; }   // bytes from one group to the next
    size_t bytes() const { return static_cast<size_t>(groups_ * stride_); }
    const uint8_t* group(int64_t index) const { return data_.get() + index * stride_; }

    // Values of row `row` as float32.
    void unpack_row(int64_t row, float* values) const;

private:
    const MatrixKernels* kernels_;
    Layout layout_;
    int64_t rows_, columns_, groups_, stride_;
    SharedBytes data_;
};

// Unpacks one chunk of a packed group, `Block` by `Block` for its rows. In a last, shorter chunk, columns beyond
// `columns` are left unchanged.
void unpack_chunk(Layout layout, int group_rows, const uint8_t* chunk, int64_t columns, int row, Block& block);

// Bytes of the first `columns` columns (a multiple of 256, or all of them) of a group.
int64_t packed_bytes(Layout layout, int group_rows, int64_t columns);

}  // namespace puna
