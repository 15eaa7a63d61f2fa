// The block types of GGUF files, decoded into one common form.
#pragma once
#include <cstdint>

namespace puna {

// Type numbers as in the file.
enum class FileType : int {
    f32 = 0, f16 = 1, q4_0 = 2, q4_1 = 3, q5_0 = 6, q5_1 = 7, q8_0 = 8, q2_k = 10, q3_k = 11, q4_k = 12,
    q5_k = 13, q6_k = 14, iq2_xxs = 16, iq2_xs = 17, iq3_xxs = 18, iq1_s = 19, iq4_nl = 20, iq3_s = 21, iq2_s = 22,
    iq4_xs = 23, iq1_m = 29, bf16 = 30, tq1_0 = 34, tq2_0 = 35, mxfp4 = 39,
};

// A block's values: value[i] = scale[i / 16] * q[i] + offset[i / 16].
struct Block {
    int8_t q[256];
    float scale[16];
    float offset[16];
};

struct BlockType {
    int elements;   // in one block: 32 or 256, 1 for plain numbers
    int bytes;      // of one block
    void (*decode)(const uint8_t* bytes, Block& block);   // null for plain numbers
};

// Null for types that are not decoded natively.
const BlockType* block_type(FileType type);

// The eight 6-bit (scale, min) pairs of a Q4_K or Q5_K block, from its 12 packed bytes.
void unpack_scales_k4(const uint8_t* packed, uint8_t scales[8], uint8_t mins[8]);

// The sixteen 6-bit scales of a Q3_K block, from its 12 packed bytes.
void unpack_scales_k3(const uint8_t* packed, int8_t scales[16]);

// The eight 6-bit scales of an IQ4_XS block, from 2 bytes of high and 4 of low bits.
void unpack_scales_iq4_xs(const uint8_t* packed, int8_t scales[8]);

// Decodes one row to float32. `columns` must fill whole blocks of a type that block_type() knows.
void dequantize_row(FileType type, const uint8_t* row, int64_t columns, float* values);

}  // namespace puna
