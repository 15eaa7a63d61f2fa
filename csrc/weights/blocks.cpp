#include "weights/blocks.h"

#include <cstring>

#include "vector/half.h"
#include "weights/codebook.h"
#include "weights/points.h"

namespace puna {
namespace {

inline uint32_t u32(const uint8_t* p) { return bits_at(p) | static_cast<uint32_t>(bits_at(p + 2)) << 16; }

// Sets one factor and offset for a block of 32.
inline void set32(Block& b, float scale, float offset) {
    b.scale[0] = b.scale[1] = scale;
    b.offset[0] = b.offset[1] = offset;
}

inline void nibbles(const uint8_t* p, int shift, int8_t* q) {   // low halves first, then high halves
    for (int j = 0; j < 16; j++) {
        q[j] = static_cast<int8_t>((p[j] & 15) - shift);
        q[j + 16] = static_cast<int8_t>((p[j] >> 4) - shift);
    }
}

inline void looked_up(const uint8_t* p, const int8_t* entries, int8_t* q) {
    for (int j = 0; j < 16; j++) {
        q[j] = entries[p[j] & 15];
        q[j + 16] = entries[p[j] >> 4];
    }
}

inline void five_bits(const uint8_t* p, uint32_t high, int shift, int8_t* q) {
    for (int j = 0; j < 16; j++) {
        q[j] = static_cast<int8_t>(((p[j] & 15) | (high >> j & 1) << 4) - shift);
        q[j + 16] = static_cast<int8_t>(((p[j] >> 4) | (high >> (j + 16) & 1) << 4) - shift);
    }
}

void q4_0(const uint8_t* p, Block& b) { nibbles(p + 2, 8, b.q); set32(b, half_at(p), 0); }
void q4_1(const uint8_t* p, Block& b) { nibbles(p + 4, 0, b.q); set32(b, half_at(p), half_at(p + 2)); }
void q5_0(const uint8_t* p, Block& b) { five_bits(p + 6, u32(p + 2), 16, b.q); set32(b, half_at(p), 0); }
void q5_1(const uint8_t* p, Block& b) { five_bits(p + 8, u32(p + 4), 0, b.q); set32(b, half_at(p), half_at(p + 2)); }
void q8_0(const uint8_t* p, Block& b) { std::memcpy(b.q, p + 2, 32); set32(b, half_at(p), 0); }

void iq4_nl(const uint8_t* p, Block& b) { looked_up(p + 2, iq4_nl_entries, b.q); set32(b, half_at(p), 0); }

void mxfp4(const uint8_t* p, Block& b) {
    looked_up(p + 1, mxfp4_entries, b.q);
    const uint32_t e = p[0];   // 2^(e-128): half the exponent's value, because the numbers are doubled
    set32(b, bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23), 0);
}

void iq4_xs(const uint8_t* p, Block& b) {
    const float d = half_at(p);
    int8_t scales[8];
    unpack_scales_iq4_xs(p + 2, scales);
    for (int i = 0; i < 8; i++) {
        looked_up(p + 8 + 16 * i, iq4_nl_entries, b.q + 32 * i);
        b.scale[2 * i] = b.scale[2 * i + 1] = d * static_cast<float>(scales[i]);
        b.offset[2 * i] = b.offset[2 * i + 1] = 0;
    }
}

void q2_k(const uint8_t* p, Block& b) {
    const uint8_t *scales = p, *q = p + 16;
    const float d = half_at(p + 80), dmin = half_at(p + 82);
    for (int i = 0; i < 256; i++) b.q[i] = q[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
    for (int g = 0; g < 16; g++) {
        b.scale[g] = d * static_cast<float>(scales[g] & 15);
        b.offset[g] = -(dmin * static_cast<float>(scales[g] >> 4));
    }
}

void q3_k(const uint8_t* p, Block& b) {
    const uint8_t *mask = p, *q = p + 32;
    const float d = half_at(p + 108);
    int8_t scales[16];
    unpack_scales_k3(p + 96, scales);
    for (int i = 0; i < 256; i++) {
        const int two = q[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
        b.q[i] = static_cast<int8_t>(two - (mask[i % 32] >> i / 32 & 1 ? 0 : 4));
    }
    for (int g = 0; g < 16; g++) {
        b.scale[g] = d * static_cast<float>(scales[g]);
        b.offset[g] = 0;
    }
}

// Scales and offsets of Q4_K and Q5_K.
void scales_k4(const uint8_t* p, Block& b) {
    const float d = half_at(p), dmin = half_at(p + 2);
    uint8_t scales[8], mins[8];
    unpack_scales_k4(p + 4, scales, mins);
    for (int g = 0; g < 16; g++) {
        b.scale[g] = d * static_cast<float>(scales[g / 2]);
        b.offset[g] = -(dmin * static_cast<float>(mins[g / 2]));
    }
}

void q4_k(const uint8_t* p, Block& b) {
    scales_k4(p, b);
    const uint8_t* q = p + 16;
    for (int i = 0; i < 256; i++) b.q[i] = q[i / 64 * 32 + i % 32] >> 4 * (i % 64 / 32) & 15;
}

void q5_k(const uint8_t* p, Block& b) {
    scales_k4(p, b);
    const uint8_t *high = p + 16, *q = p + 48;
    for (int i = 0; i < 256; i++) {
        const int low = q[i / 64 * 32 + i % 32] >> 4 * (i % 64 / 32) & 15;
        b.q[i] = static_cast<int8_t>(low | (high[i % 32] >> i / 32 & 1) << 4);
    }
}

void q6_k(const uint8_t* p, Block& b) {
    const uint8_t *low = p, *high = p + 128, *scales = p + 192;
    const float d = half_at(p + 208);
    for (int i = 0; i < 256; i++) {
        const int h = i / 128, quarter = i % 128 / 32, l = i % 32;
        const int four = low[64 * h + 32 * (quarter % 2) + l] >> 4 * (quarter / 2) & 15;
        b.q[i] = static_cast<int8_t>((four | (high[32 * h + l] >> 2 * quarter & 3) << 4) - 32);
    }
    for (int g = 0; g < 16; g++) {
        b.scale[g] = d * static_cast<float>(static_cast<int8_t>(scales[g]));
        b.offset[g] = 0;
    }
}

void one_scale(Block& b, float d) {
    for (int g = 0; g < 16; g++) {
        b.scale[g] = d;
        b.offset[g] = 0;
    }
}

// Base-3 digits stored as fractions: digit n of a byte is the integer part of 3 * frac(byte * 3^n / 256).
inline int8_t trit(uint8_t byte, int n) {
    constexpr uint8_t powers[5] = {1, 3, 9, 27, 81};
    const auto shifted = static_cast<uint8_t>(byte * powers[n]);
    return static_cast<int8_t>((shifted * 3 >> 8) - 1);
}

void tq1_0(const uint8_t* p, Block& b) {   // 32 bytes of 5 digits, 16 of 5, 4 of 4
    for (int n = 0; n < 5; n++) {
        for (int j = 0; j < 32; j++) b.q[32 * n + j] = trit(p[j], n);
        for (int j = 0; j < 16; j++) b.q[160 + 16 * n + j] = trit(p[32 + j], n);
    }
    for (int n = 0; n < 4; n++) {
        for (int j = 0; j < 4; j++) b.q[240 + 4 * n + j] = trit(p[48 + j], n);
    }
    one_scale(b, half_at(p + 52));
}

void tq2_0(const uint8_t* p, Block& b) {
    for (int i = 0; i < 256; i++) {
        b.q[i] = static_cast<int8_t>((p[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3) - 1);
    }
    one_scale(b, half_at(p + 64));
}

}  // namespace

void unpack_scales_k4(const uint8_t* packed, uint8_t scales[8], uint8_t mins[8]) {
    for (int j = 0; j < 4; j++) {
        scales[j] = packed[j] & 63;
        mins[j] = packed[j + 4] & 63;
        scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        mins[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

void unpack_scales_k3(const uint8_t* packed, int8_t scales[16]) {
    for (int g = 0; g < 16; g++) {
        const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
        scales[g] = static_cast<int8_t>((low | (packed[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32);
    }
}

void unpack_scales_iq4_xs(const uint8_t* packed, int8_t scales[8]) {
    const uint16_t high = bits_at(packed);
    for (int i = 0; i < 8; i++) {
        const int low = packed[2 + i / 2] >> 4 * (i % 2) & 15;
        scales[i] = static_cast<int8_t>((low | (high >> 2 * i & 3) << 4) - 32);
    }
}

const BlockType* block_type(FileType type) {
    static const BlockType f32{1, 4, nullptr}, f16{1, 2, nullptr};
    static const BlockType b4_0{32, 18, q4_0}, b4_1{32, 20, q4_1}, b5_0{32, 22, q5_0}, b5_1{32, 24, q5_1};
    static const BlockType b8_0{32, 34, q8_0}, b4_nl{32, 18, iq4_nl}, bmx{32, 17, mxfp4};
    static const BlockType k2{256, 84, q2_k}, k3{256, 110, q3_k}, k4{256, 144, q4_k}, k5{256, 176, q5_k};
    static const BlockType k6{256, 210, q6_k}, b4_xs{256, 136, iq4_xs}, t1{256, 54, tq1_0}, t2{256, 66, tq2_0};
    static const BlockType p2_xxs{256, 66, decode_points<FileType::iq2_xxs>};
    static const BlockType p2_xs{256, 74, decode_points<FileType::iq2_xs>};
    static const BlockType p2_s{256, 82, decode_points<FileType::iq2_s>};
    static const BlockType p3_xxs{256, 98, decode_points<FileType::iq3_xxs>};
    static const BlockType p3_s{256, 110, decode_points<FileType::iq3_s>};
    static const BlockType p1_s{256, 50, decode_points<FileType::iq1_s>};
    static const BlockType p1_m{256, 56, decode_points<FileType::iq1_m>};
    switch (type) {
        case FileType::f32: return &f32;
        case FileType::f16: case FileType::bf16: return &f16;
        case FileType::q4_0: return &b4_0;
        case FileType::q4_1: return &b4_1;
        case FileType::q5_0: return &b5_0;
        case FileType::q5_1: return &b5_1;
        case FileType::q8_0: return &b8_0;
        case FileType::q2_k: return &k2;
        case FileType::q3_k: return &k3;
        case FileType::q4_k: return &k4;
        case FileType::q5_k: return &k5;
        case FileType::q6_k: return &k6;
        case FileType::iq2_xxs: return &p2_xxs;
        case FileType::iq2_xs: return &p2_xs;
        case FileType::iq2_s: return &p2_s;
        case FileType::iq3_xxs: return &p3_xxs;
        case FileType::iq3_s: return &p3_s;
        case FileType::iq1_s: return &p1_s;
        case FileType::iq1_m: return &p1_m;
        case FileType::iq4_nl: return &b4_nl;
        case FileType::iq4_xs: return &b4_xs;
        case FileType::tq1_0: return &t1;
        case FileType::tq2_0: return &t2;
        case FileType::mxfp4: return &bmx;
    }
    return nullptr;
}

void dequantize_row(FileType type, const uint8_t* row, int64_t columns, float* values) {
    switch (type) {
        case FileType::f32: std::memcpy(values, row, static_cast<size_t>(columns) * 4); return;
        case FileType::f16:
            for (int64_t i = 0; i < columns; i++) values[i] = half_at(row + 2 * i);
            return;
        case FileType::bf16:
            for (int64_t i = 0; i < columns; i++) values[i] = bfloat_to_float(bits_at(row + 2 * i));
            return;
        default: break;
    }
    const BlockType& of = *block_type(type);
    Block block;
    for (int64_t begin = 0; begin < columns; begin += of.elements, row += of.bytes, values += of.elements) {
        of.decode(row, block);
        for (int i = 0; i < of.elements; i++) {
            values[i] = block.scale[i / 16] * static_cast<float>(block.q[i]) + block.offset[i / 16];
        }
    }
}

}  // namespace puna
