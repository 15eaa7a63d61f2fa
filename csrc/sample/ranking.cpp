#include "sample/ranking.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace puna {
namespace {

constexpr int64_t small = 4096;   // rows with at most this many tokens are ranked entirely
constexpr int64_t few = 1024;   // tokens of a ring not worth another pass
constexpr int max_passes = 5;   // over rings of equal logits, which no pass makes smaller

// Kept between calls: megabytes if the logits are equal.
template <class T>
std::vector<T>& buffer() {
    thread_local std::vector<T> kept;
    return kept;
}

}  // namespace

int32_t* id_buffer(int64_t count) {
    std::vector<int32_t>& ids = buffer<int32_t>();
    if (int64_t(ids.size()) < count + 16) ids.resize(count + 16);
    return ids.data();
}

Ranking::Ranking(const float* logits, int64_t count, const Scale& scale)
    : logits_(logits),
      count_(count),
      scale_(scale),
      // At a tiny temperature, a few float steps.
      step_(std::max(scale.temperature, 1e-6f * std::fabs(scale.largest))),
      tokens_(buffer<Token>()) {
    rungs_.push_back({-1, 0, 0});
    if (count <= small) {
        rungs_.push_back({FLT_MAX, 0, count});
        collect(-1, FLT_MAX);
        for (const Token& token : tokens_) rungs_[1].sum += token.weight;
        rungs_[1].count = int64_t(tokens_.size());
        return;
    }
    float reaches[reaches_at_once];
    for (int i = 0; i < reaches_at_once; i++) reaches[i] = step_ * std::ldexp(0.25f, i);
    reaches[reaches_at_once - 1] = FLT_MAX;
    climb(reaches);
}

void Ranking::climb(const float* reaches) {
    float finite[reaches_at_once];
    double sums[reaches_at_once];
    int64_t counts[reaches_at_once];
    for (int i = 0; i < reaches_at_once; i++) finite[i] = std::min(reaches[i], FLT_MAX);
    sample_kernels().within(logits_, count_, scale_, finite, sums, counts);
    for (int i = 0; i < reaches_at_once; i++) rungs_.push_back({finite[i], sums[i], counts[i]});
    std::sort(rungs_.begin(), rungs_.end(), [](const Rung& a, const Rung& b) { return a.reach < b.reach; });
}

bool Ranking::before(const Token& a, const Token& b) const {
    const double x = std::fabs(double(a.logit) - scale_.center), y = std::fabs(double(b.logit) - scale_.center);
    return x != y ? x < y : a.id < b.id;
}

void Ranking::collect(float low, float high) {
    if (inner_ == low && outer_ == high) return;
    inner_ = low, outer_ = high;
    int32_t* ids = id_buffer(count_);
    const int64_t found = sample_kernels().ring(logits_, count_, scale_.center, low, high, ids);
    tokens_.resize(found);
    const float shift = scale_.largest / scale_.temperature;
    for (int64_t i = 0; i < found; i++) {
        const float logit = logits_[ids[i]];
        tokens_[i] = {logit, ids[i], std::exp(double(logit / scale_.temperature - shift))};
    }
}

double Ranking::cut(double mass, bool strictly) {
    const auto enough = [=](double sum) { return strictly ? sum > mass : sum >= mass; };
    size_t high = 0;
    for (int pass = 0;; pass++) {
        high = 1;
        while (high + 1 < rungs_.size() && !(rungs_[high].count && enough(rungs_[high].sum))) high++;
        // Rounding may leave nothing at the far end; then the last ring that is not empty counts.
        while (high > 1 && rungs_[high].count == rungs_[high - 1].count) high--;
        const Rung low = rungs_[high - 1], top = rungs_[high];
        const float begin = std::max(low.reach, 0.0f);
        if (count_ <= small || top.count - low.count <= few || top.reach <= begin || pass == max_passes) break;
        float reaches[reaches_at_once];
        for (int i = 0; i < reaches_at_once; i++) {
            reaches[i] = top.reach == FLT_MAX ? std::max(begin, step_) * std::ldexp(2.0f, i)
                                              : begin + (top.reach - begin) * float(i) / reaches_at_once;
        }
        climb(reaches);
    }
    double sum = rungs_[high - 1].sum;
    collect(rungs_[high - 1].reach, rungs_[high].reach);
    const auto earlier = [this](const Token& a, const Token& b) { return before(a, b); };
    auto begin = tokens_.begin(), end = tokens_.end();
    while (end - begin > 64) {
        const auto middle = begin + (end - begin) / 2;
        std::nth_element(begin, middle, end, earlier);
        double half = 0;
        for (auto t = begin; t != middle; ++t) half += t->weight;
        if (enough(sum + half)) {
            end = middle;
        } else {
            sum += half;
            begin = middle;
        }
    }
    std::sort(begin, end, earlier);
    for (; end - begin > 1 && !enough(sum + begin->weight); ++begin) sum += begin->weight;
    last_ = size_t(begin - tokens_.begin());
    return sum + begin->weight;
}

void Ranking::keep(float* kept) const {
    sample_kernels().keep_within(logits_, count_, scale_.center, inner_, kept);
    for (size_t i = 0; i <= last_; i++) kept[tokens_[i].id] = tokens_[i].logit;
}

double Ranking::sum_above(double least) {
    size_t low = 0, high = 1;
    if (count_ > small) {
        // A ring around the logit at which weights fall below the limit, wider than rounding: all before it are
        // certain.
        const float reach = float(-std::log(least) * scale_.temperature);
        const float margin = 1e-4f * reach + 1e-3f * scale_.temperature + 1e-6f * std::fabs(scale_.largest);
        float reaches[reaches_at_once];
        for (int i = 0; i < reaches_at_once; i++) reaches[i] = std::max(i % 2 ? reach + margin : reach - margin, -1.0f);
        climb(reaches);
        while (low + 1 < rungs_.size() && rungs_[low + 1].reach <= reach - margin) low++;
        for (high = low; high + 1 < rungs_.size() && rungs_[high].reach < reach + margin;) high++;
    }
    double sum = rungs_[low].sum;
    collect(rungs_[low].reach, rungs_[high].reach);
    for (const Token& token : tokens_) {
        if (token.weight >= least) sum += token.weight;
    }
    return sum;
}

}  // namespace puna
