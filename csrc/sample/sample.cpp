#include "sample/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sample/ranking.h"

namespace puna {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Candidate {
    float logit;
    int32_t id;
};

// Descending by logit, ascending by id: a total order, whatever the sort.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

std::vector<Candidate> sorted_top(const float* logits, int64_t count, int64_t k) {
    std::vector<Candidate> best;
    if (k <= 0) return best;
    const int64_t limit = std::min(count, 2 * k + 1024);   // beyond this, drop all but the best k
    int64_t at = limit;
    for (int64_t id = 0; id < limit; id++) best.push_back({logits[id], int32_t(id)});
    int32_t* ids = id_buffer(limit);
    while (true) {
        if (int64_t(best.size()) > k) {
            std::nth_element(best.begin(), best.begin() + (k - 1), best.end(), before);
            best.resize(k);
        }
        if (at >= count) break;
        // Later ids lose ties, so only logits strictly above the smallest of the best matter.
        const float least = std::max_element(best.begin(), best.end(), before)->logit;
        const int64_t found = sample_kernels().collect(logits, at, count, least, ids, limit - k, &at);
        for (int64_t i = 0; i < found; i++) best.push_back({logits[ids[i]], ids[i]});
    }
    std::sort(best.begin(), best.end(), before);
    return best;
}

// The logits of a row that may still be drawn, with their tokens.
class Row {
public:
    Row(const float* logits, int64_t count) : logits_(logits), count_(count) {}

    const float* logits() const { return logits_; }
    int64_t count() const { return count_; }
    float largest() const { return largest_; }
    int64_t token(int64_t place) const { return ids_.empty() ? place : ids_[size_t(place)]; }

    // Scans all logits; false if there are none, one is NaN or +infinity, or all are -infinity.
    bool scan() {
        return count_ > 0 && sample_kernels().scan(logits_, count_, &largest_) && largest_ > -infinity;
    }

    // The place of the largest logit, the first of equals: that of the first one above the next smaller float.
    int64_t first_largest() const {
        int32_t ids[1 + 16];
        int64_t stop;
        sample_kernels().collect(logits_, 0, count_, std::nextafter(largest_, -infinity), ids, 1, &stop);
        return ids[0];
    }

    void keep_allowed(const uint32_t* allowed) {
        float* kept = copy();
        sample_kernels().keep_allowed(logits_, count_, allowed, kept);
        logits_ = kept;
    }

    void keep_top_n_sigma(double n) {
        const Spread spread = sample_kernels().spread(logits_, count_, largest_);
        const double mean = spread.sum / spread.count;
        const double deviation = std::sqrt(std::max(spread.squares / spread.count - mean * mean, 0.0));
        const double least = double(largest_) - n * deviation;
        if (!std::isfinite(least)) return;
        float* kept = copy();
        sample_kernels().keep_above(logits_, count_, float(least), kept);
        logits_ = kept;
    }

    // From now on, places are indices into the best tokens.
    void keep_top_k(int64_t k) {
        const std::vector<Candidate> best = sorted_top(logits_, count_, k);
        top_.resize(best.size() + 16);
        ids_.resize(best.size());
        for (size_t i = 0; i < best.size(); i++) top_[i] = best[i].logit, ids_[i] = best[i].id;
        logits_ = top_.data();
        count_ = int64_t(best.size());
    }

    void keep_typical(double p) {
        double sum, moment;
        sample_kernels().moments(logits_, count_, largest_, &sum, &moment);
        Ranking ranking(logits_, count_, {float(largest_ + moment / sum), largest_, 1});
        ranking.cut(p * ranking.total(), true);
        float* kept = copy();
        ranking.keep(kept);
        logits_ = kept;
        sample_kernels().scan(logits_, count_, &largest_);
    }

private:
    // The destination for copied logits, possibly in place; one buffer per thread.
    float* copy() const {
        thread_local std::vector<float> buffer;
        if (int64_t(buffer.size()) < count_ + 16) buffer.resize(count_ + 16);
        return buffer.data();
    }

    const float* logits_;
    int64_t count_;
    float largest_ = -infinity;
    std::vector<float> top_;
    std::vector<int32_t> ids_;
};

}  // namespace

PUNA_DEFINE_CHOICE(SampleKernels, sample_kernels)

void top_k(const float* logits, int64_t count, int64_t k, int64_t* ids) {
    for (const Candidate& candidate : sorted_top(logits, count, k)) *ids++ = candidate.id;
}

int64_t choose(const Draw& draw) {
    Row row(draw.logits, draw.count);
    if (draw.allowed) row.keep_allowed(draw.allowed);
    if (!row.scan()) return -1;
    if (draw.temperature == 0) return row.first_largest();
    if (draw.top_n_sigma > 0) row.keep_top_n_sigma(draw.top_n_sigma);
    if (draw.top_k > 0 && draw.top_k < row.count()) row.keep_top_k(draw.top_k);
    if (draw.typical_p < 1) row.keep_typical(draw.typical_p);
    const float temperature = float(std::max(draw.temperature, 1e-7));
    Ranking ranking(row.logits(), row.count(), {row.largest(), row.largest(), temperature});
    double kept = ranking.total();
    if (draw.top_p < 1) kept = ranking.cut(draw.top_p * kept, true);
    if (draw.min_p > 0) kept = std::min(kept, ranking.sum_above(draw.min_p));
    ranking.cut(draw.uniform * kept, false);
    return row.token(ranking.last());
}

}  // namespace puna
