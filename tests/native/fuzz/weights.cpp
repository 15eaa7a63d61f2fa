// libFuzzer target: decode, pack and unpack the bytes of a matrix from a file.
//
// Input: type, rows, blocks in a row, rows of a group; then the blocks. Both ways from blocks to values must agree.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/cpu.h"
#include "core/pool.h"
#include "matrix/pack.h"
#include "weights/blocks.h"

namespace puna {

// Stand-ins for what packing needs: the group size in rows, and one thread.
static MatrixKernels kernels{};

CpuLevel cpu_level() { return CpuLevel{}; }
const MatrixKernels& matrix_kernels(CpuLevel) { return kernels; }

namespace detail {
void run(int64_t count, void (*body)(void*, int64_t, int), void* context) {
    for (int64_t i = 0; i < count; ++i) body(context, i, 0);
}
}  // namespace detail
}  // namespace puna

using namespace puna;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 4) return 0;
    const auto type = static_cast<FileType>(data[0] % 40);
    const BlockType* of = block_type(type);
    if (!of) return 0;
    const int64_t rows = data[1] % 40 + 1;
    const int64_t columns = (data[2] % 6 + 1) * int64_t{of->elements};
    kernels.rows = data[3] % 2 ? 16 : 8;
    const size_t row_bytes = static_cast<size_t>(columns / of->elements) * of->bytes;
    data += 4, size -= 4;

    // Allocated to the exact size, so that the sanitizer finds a read beyond it.
    std::vector<uint8_t> file(row_bytes * rows);
    for (size_t i = 0; i < file.size(); ++i) file[i] = size ? data[i % size] : 0;

    const PackedMatrix packed(file.data(), file.size(), type, rows, columns);
    std::vector<float> expected(columns), found(columns);
    for (int64_t row = 0; row < rows; ++row) {
        dequantize_row(type, file.data() + row * row_bytes, columns, expected.data());
        packed.unpack_row(row, found.data());
        for (int64_t i = 0; i < columns; ++i) {
            const float difference = std::fabs(found[i] - expected[i]);
            if (std::isfinite(expected[i]) && !(difference <= 1e-2f * std::fabs(expected[i]) + 1e-2f)) {
                std::printf("type %d, row %d, column %d: %g, not %g\n", static_cast<int>(type),
                            static_cast<int>(row), static_cast<int>(i), found[i], expected[i]);
                std::abort();
            }
        }
    }
    return 0;
}
