// The kernels of recurrent layers, compiled once per instruction set.
#include "recurrent/lanes.h"
#include "recurrent/recurrent.h"

namespace puna {
namespace {

void short_conv_row(const float* b, const float* c, const float* x, const float* const* past, const float* weights,
                    const float* bias, int64_t taps, int64_t width, bool activated, bool nontemporal, float* newest,
                    float* after, float* y) {
    constexpr int64_t ahead = 512;   // floats prefetched before one is loaded
    const bool past_caches = nontemporal && width % Vec::width == 0 &&
                             reinterpret_cast<uintptr_t>(after) % sizeof(Vec) == 0;
    for_vectors(width, [=](int64_t i, auto lanes) {
        const auto keep = [=](Vec inputs, int64_t k) {
            if (!after || k < 0) return;
            float* to = after + k * width + i;
            past_caches ? lanes.store_nontemporal(inputs, to) : lanes.store(inputs, to);
        };
        const Vec last = b ? lanes.load(b + i) * lanes.load(x + i) : lanes.load(x + i);
        Vec sum = bias ? lanes.load(bias + i) : Vec::splat(0);
        for (int64_t k = 0; k < taps - 1; k++) {
            if (nontemporal) __builtin_prefetch(past[k] + i + ahead);
            const Vec inputs = lanes.load(past[k] + i);
            sum = fma(inputs, lanes.load(weights + k * width + i), sum);
            keep(inputs, k - 1);
        }
        sum = fma(last, lanes.load(weights + (taps - 1) * width + i), sum);
        keep(last, taps - 2);
        lanes.store(last, newest + i);
        if (c) sum = lanes.load(c + i) * sum;
        else if (activated) sum = sum / (Vec::splat(1) + exp(Vec::splat(0) - sum));
        lanes.store(sum, y + i);
    });
    if (after && past_caches) fence_nontemporal();
}

void pool_row(const float* const* values, const float* const* gates, const float* bias, int64_t taps, int64_t width,
              float* y) {
    for_vectors(width, [=](int64_t i, auto lanes) {
        const auto gate = [=](int64_t k) { return lanes.load(gates[k] + i) + lanes.load(bias + k * width + i); };
        Vec largest = gate(0);
        for (int64_t k = 1; k < taps; k++) largest = max(largest, gate(k));
        Vec total = Vec::splat(0), sum = total;
        for (int64_t k = 0; k < taps; k++) {
            const Vec share = exp(gate(k) - largest);
            total = total + share;
            sum = fma(share, lanes.load(values[k] + i), sum);
        }
        lanes.store(sum / total, y + i);
    });
}

}  // namespace

const RecurrentKernels PUNA_SET::recurrent_kernels = {short_conv_row, pool_row};

}  // namespace puna
