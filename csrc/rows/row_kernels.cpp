// The row kernels, compiled once per instruction set.
#include "kv/pack.h"
#include "rows/rows.h"
#include "vector/vector.h"

namespace puna {
namespace {

void rms_norm_row(const float* x, const float* residual, const float* weight, float eps, int64_t width, float* sum,
                  float* y) {
    constexpr int W = Vec::width;
    if (residual) {
        int64_t i = 0;
        for (; i + W <= width; i += W) (Vec::load(x + i) + Vec::load(residual + i)).store(sum + i);
        for (; i < width; i++) sum[i] = x[i] + residual[i];
        x = sum;
    }
    Vec squares[4] = {Vec::splat(0), Vec::splat(0), Vec::splat(0), Vec::splat(0)};
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W) {
        for (int k = 0; k < 4; k++) {
            const Vec v = Vec::load(x + i + k * W);
            squares[k] = fma(v, v, squares[k]);
        }
    }
    for (; i < width; i += W) {
        const Vec v = i + W <= width ? Vec::load(x + i) : load_part(x + i, int(width - i));
        squares[0] = fma(v, v, squares[0]);
    }
    const float total = sum_lanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
    const float factor = 1 / __builtin_sqrtf(total / float(width) + eps);
    const Vec scale = Vec::splat(factor);
    for (i = 0; i + W <= width; i += W) (Vec::load(x + i) * scale * Vec::load(weight + i)).store(y + i);
    for (; i < width; i++) y[i] = x[i] * factor * weight[i];
}

// The variance is computed from the differences: the mean of x^2 minus the mean's square would lose digits.
void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* y) {
    constexpr int W = Vec::width;
    const auto sum_of = [=](auto of) {
        Vec sums[2] = {Vec::splat(0), Vec::splat(0)};
        int64_t i = 0;
        for (; i + 2 * W <= width; i += 2 * W) {
            for (int k = 0; k < 2; k++) sums[k] = sums[k] + of(Vec::load(x + i + k * W));
        }
        for (; i + W <= width; i += W) sums[0] = sums[0] + of(Vec::load(x + i));
        float rest[W] = {};
        if (i < width) {
            of(load_part(x + i, int(width - i))).store(rest);
            sums[1] = sums[1] + load_part(rest, int(width - i));
        }
        return sum_lanes(sums[0] + sums[1]);
    };
    const Vec mean = Vec::splat(sum_of([](Vec v) { return v; }) / float(width));
    const float squares = sum_of([=](Vec v) { return (v - mean) * (v - mean); });
    const Vec scale = Vec::splat(1 / __builtin_sqrtf(squares / float(width) + eps));
    for (int64_t i = 0; i < width; i += W) {
        const int count = width - i < W ? int(width - i) : W;
        Vec v = (load_part(x + i, count) - mean) * scale * load_part(weight + i, count);
        if (bias) v = v + load_part(bias + i, count);
        store_part(v, y + i, count);
    }
}

// The angle is reduced in double: a float32 angle at position 100,000 is off by up to 0.004.
void rope_table(const int32_t* positions, const float* frequencies, float magnitude, int64_t pairs, float* cosines,
                float* sines) {
    constexpr double two_over_pi = 0.63661977236758134308, half_pi = 1.57079632679489661923, whole = 0x1.8p52;
    for (int64_t i = 0; i < pairs; i++) {
        const double angle = double(positions[i]) * double(frequencies[i]);
        const double turns = (angle * two_over_pi + whole) - whole;   // quarter turns, rounded
        const double r = angle - turns * half_pi, s = r * r;          // |r| <= pi/4: Taylor, to 2e-9
        const double sine =
            r + r * s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880))));
        const double cosine =
            1 + s * (-1.0 / 2 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800)))));
        const int32_t quarter = int32_t(turns - 4 * ((turns * 0.25 + whole) - whole));   // -2 ... 2
        const bool odd = quarter & 1;
        const double c = odd ? sine : cosine, d = odd ? cosine : sine;
        cosines[i] = float((quarter == 0 || quarter == -1) ? c : -c) * magnitude;
        sines[i] = float((quarter == 0 || quarter == 1) ? d : -d) * magnitude;
    }
}

void rotate_head(float* head, const float* cosines, const float* sines, int64_t pairs, bool neox) {
    const int64_t step = neox ? 1 : 2, apart = neox ? pairs : 1;
    int64_t i = 0;
    if (neox) {
        for (; i + Vec::width <= pairs; i += Vec::width) {
            const Vec a = Vec::load(head + i), b = Vec::load(head + pairs + i);
            const Vec c = Vec::load(cosines + i), s = Vec::load(sines + i);
            (a * c - b * s).store(head + i);
            (a * s + b * c).store(head + pairs + i);
        }
    }
    for (; i < pairs; i++) {
        float& first = head[i * step];
        float& second = head[i * step + apart];
        const float a = first, b = second;
        first = a * cosines[i] - b * sines[i];
        second = a * sines[i] + b * cosines[i];
    }
}

struct Swiglu {
    static PUNA_INLINE Vec of(Vec gate, Vec up) { return gate / (Vec::splat(1) + exp(Vec::splat(0) - gate)) * up; }
};

struct ClampedSwiglu {
    static PUNA_INLINE Vec of(Vec gate, Vec up) {
        const Vec one = Vec::splat(1), most = Vec::splat(7), least = Vec::splat(-7);
        const Vec g = min(most, gate), u = max(least, min(most, up));   // in this order NaN stays
        return g / (one + exp(g * Vec::splat(-1.702f))) * (u + one);
    }
};

// g / 2 (1 + tanh(z)) is g sigmoid(2z), which keeps its digits if tanh is close to -1.
struct Geglu {
    static PUNA_INLINE Vec of(Vec gate, Vec up) {
        constexpr float linear = -1.5957691216057308f, cubic = linear * 0.044715f;   // -2 sqrt(2 / pi)
        const Vec exponent = gate * fma(gate * gate, Vec::splat(cubic), Vec::splat(linear));
        return gate / (Vec::splat(1) + exp(exponent)) * up;
    }
};

struct Reglu {
    static PUNA_INLINE Vec of(Vec gate, Vec up) { return max(Vec::splat(0), gate) * up; }   // in this order NaN stays
};

struct SigmoidGate {
    static PUNA_INLINE Vec of(Vec x, Vec gate) { return x / (Vec::splat(1) + exp(Vec::splat(0) - gate)); }
};

// x times the normal distribution's share below x, from the error function after Hastings (Abramowitz and Stegun,
// 7.1.26), with an error of at most 1.5e-7. The small share beyond |x| is computed, and subtracted where needed.
PUNA_INLINE Vec gelu_of(Vec x) {
    constexpr float of_t[5] = {0.5f * 1.061405429f, 0.5f * -1.453152027f, 0.5f * 1.421413741f, 0.5f * -0.284496736f,
                               0.5f * 0.254829592f};
    const Vec zero = Vec::splat(0), size = min(Vec::splat(100), max(x, zero - x));   // finite, so that 0 times it is 0
    const Vec t = Vec::splat(1) / fma(size, Vec::splat(0.3275911f * 0.70710678118654752f), Vec::splat(1));
    Vec beyond = Vec::splat(of_t[0]);
    for (int k = 1; k < 5; k++) beyond = fma(beyond, t, Vec::splat(of_t[k]));
    beyond = beyond * t * exp(size * size * Vec::splat(-0.5f));
    return max(zero, x) - size * beyond;   // max in this order keeps NaN
}

struct Gelu {
    static PUNA_INLINE Vec of(Vec x) { return gelu_of(x); }
};

struct SquaredRelu {
    static PUNA_INLINE Vec of(Vec x) {
        const Vec above = max(Vec::splat(0), x);   // in this order NaN stays
        return above * above;
    }
};

template <class Function>
void each_of_range(const float* x, int64_t count, float* y) {
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) Function::of(Vec::load(x + i)).store(y + i);
    if (i < count) {
        const int rest = int(count - i);
        store_part(Function::of(load_part(x + i, rest)), y + i, rest);
    }
}

template <class Gate>
void gate_range(const float* gate, const float* up, int64_t count, float* y) {
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) Gate::of(Vec::load(gate + i), Vec::load(up + i)).store(y + i);
    if (i < count) {
        const int rest = int(count - i);
        store_part(Gate::of(load_part(gate + i, rest), load_part(up + i, rest)), y + i, rest);
    }
}

void softcap_range(const float* x, float cap, int64_t count, float* y) {
    const Vec most = Vec::splat(cap);
    int64_t i = 0;
    for (; i + Vec::width <= count; i += Vec::width) (tanh(Vec::load(x + i) / most) * most).store(y + i);
    if (i < count) {
        const int rest = int(count - i);
        store_part(tanh(load_part(x + i, rest) / most) * most, y + i, rest);
    }
}

}  // namespace

const RowKernels PUNA_SET::row_kernels = {rms_norm_row, layer_norm_row, rope_table, rotate_head, gate_range<Swiglu>,
                                         gate_range<ClampedSwiglu>, gate_range<Geglu>, gate_range<Reglu>,
                                         each_of_range<Gelu>, each_of_range<SquaredRelu>, gate_range<SigmoidGate>,
                                         softcap_range, store_numbers};

}  // namespace puna
