#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace puna {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Candidate {
    float logit;
    int32_t id;
};

// Descending by logit, ascending by id: a total order, whatever the sort.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }

// Memory for ids to be collected into, with room for a whole vector beyond `count`.
int32_t* id_buffer(int64_t count) {
    thread_local std::vector<int32_t> buffer;
    if (int64_t(buffer.size()) < count + 16) buffer.resize(count + 16);
    return buffer.data();
}

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
        // Later ids lose ties, so only what is strictly above the least of the best is of interest.
        const float least = std::max_element(best.begin(), best.end(), before)->logit;
        const int64_t found =
            sample_kernels().collect(logits, at, count, least, infinity, ids, limit - k, &at);
        for (int64_t i = 0; i < found; i++) best.push_back({logits[ids[i]], ids[i]});
    }
    std::sort(best.begin(), best.end(), before);
    return best;
}

// Tokens in descending order with the running sum of their weights e^((logit - largest) / temperature), sorted
// only as far as someone looks: with a real model's logits that is a few dozen of a hundred thousand.
class Ranking {
public:
    Ranking(const float* logits, int64_t count, float largest, float temperature)
        : logits_(logits), count_(count), largest_(largest), temperature_(temperature) {}

    // All tokens, to be sorted when needed.
    void rank_all() {
        total_ = sample_kernels().sum(logits_, count_, largest_, temperature_);
        reached_ = infinity;
    }

    // Just these, already in order.
    void rank(const std::vector<Candidate>& candidates) {
        for (const Candidate& candidate : candidates) append(candidate);
        total_ = sums_.back();
        reached_ = -infinity;
    }

    double total() const { return total_; }

    // How many tokens it takes for the sum to be beyond `mass` (or to reach it, unless `strictly`).
    int64_t tokens_for(double mass, bool strictly) {
        while (true) {
            const auto found = strictly ? std::upper_bound(sums_.begin(), sums_.end(), mass)
                                        : std::lower_bound(sums_.begin(), sums_.end(), mass);
            if (found != sums_.end()) return found - sums_.begin() + 1;
            if (!extend()) return int64_t(sums_.size());
        }
    }

    // How many leading tokens weigh at least `least` (the first one weighs 1).
    int64_t tokens_above(double least) {
        const auto light = [this](const Candidate& candidate, double bound) { return weight(candidate) >= bound; };
        while (true) {
            const auto found = std::lower_bound(ranked_.begin(), ranked_.end(), least, light);
            if (found != ranked_.end()) return found - ranked_.begin();
            if (!extend()) return int64_t(ranked_.size());
        }
    }

    double sum_of_first(int64_t tokens) const { return sums_[tokens - 1]; }
    int32_t id(int64_t rank) const { return ranked_[rank].id; }

private:
    double weight(const Candidate& candidate) const {
        return std::exp(double(candidate.logit / temperature_ - largest_ / temperature_));
    }

    void append(const Candidate& candidate) {
        ranked_.push_back(candidate);
        sums_.push_back((sums_.empty() ? 0 : sums_.back()) + weight(candidate));
    }

    // Ranks the tokens of the next lower level; false when none are left.
    bool extend() {
        while (reached_ != -infinity) {
            depth_ = depth_ == 0 ? 3 : 2 * depth_;
            // At a tiny temperature the level is a few float steps.
            const float step = std::max(temperature_, 1e-6f * std::fabs(largest_));
            const float low = depth_ > 100 ? -infinity : largest_ - depth_ * step;
            int32_t* ids = id_buffer(count_);
            int64_t stop;
            const int64_t found = sample_kernels().collect(logits_, 0, count_, low, reached_, ids, count_, &stop);
            reached_ = low;
            if (!found) continue;
            level_.clear();
            for (int64_t i = 0; i < found; i++) level_.push_back({logits_[ids[i]], ids[i]});
            std::sort(level_.begin(), level_.end(), before);
            for (const Candidate& candidate : level_) append(candidate);
            return true;
        }
        return false;
    }

    const float* logits_;
    int64_t count_;
    float largest_, temperature_;
    float reached_ = infinity;   // tokens above this logit are ranked; those of -infinity never are
    float depth_ = 0;            // how many steps below the largest that is
    double total_ = 0;
    std::vector<Candidate> ranked_, level_;
    std::vector<double> sums_;
};

// Candidates closest in surprise to the expected one, up to a probability above p; in their order.
std::vector<Candidate> keep_typical(const std::vector<Candidate>& candidates, double p) {
    const size_t count = candidates.size();
    std::vector<double> probability(count), distance(count);
    double total = 0, entropy = 0;
    for (size_t i = 0; i < count; i++) {
        probability[i] = std::exp(double(candidates[i].logit - candidates[0].logit));
        total += probability[i];
    }
    for (double& each : probability) {
        each /= total;
        if (each > 0) entropy -= each * std::log(each);
    }
    for (size_t i = 0; i < count; i++) distance[i] = std::fabs(-std::log(probability[i]) - entropy);
    std::vector<int32_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = int32_t(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return distance[a] < distance[b]; });
    size_t kept = 0;
    for (double sum = 0; kept < count && sum <= p; kept++) sum += probability[order[kept]];
    order.resize(kept);
    std::sort(order.begin(), order.end());
    std::vector<Candidate> result;
    for (int32_t i : order) result.push_back(candidates[i]);
    return result;
}

}  // namespace

const SampleKernels& sample_kernels() {
#if defined(__x86_64__)
    if (cpu_level() == CpuLevel::avx512) return sample_avx512;
    if (cpu_level() == CpuLevel::avx2) return sample_avx2;
#endif
    return sample_portable;
}

void top_k(const float* logits, int64_t count, int64_t k, int64_t* ids) {
    for (const Candidate& candidate : sorted_top(logits, count, k)) *ids++ = candidate.id;
}

int64_t choose(const float* logits, int64_t count, const Choice& choice) {
    float largest;
    if (count == 0 || !sample_kernels().scan(logits, count, &largest) || largest == -infinity) return -1;
    if (choice.temperature == 0) {
        const float* found = std::find(logits, logits + count, largest);
        return found - logits;
    }
    const bool all = choice.top_k <= 0 || choice.top_k >= count;
    Ranking ranking(logits, count, largest, float(std::max(choice.temperature, 1e-7)));
    if (all && choice.typical_p >= 1) {
        ranking.rank_all();
    } else {
        std::vector<Candidate> candidates = sorted_top(logits, count, all ? count : choice.top_k);
        if (choice.typical_p < 1) candidates = keep_typical(candidates, choice.typical_p);
        ranking.rank(candidates);
    }
    double kept = ranking.total();
    if (choice.top_p < 1) kept = ranking.sum_of_first(ranking.tokens_for(choice.top_p * kept, true));
    if (choice.min_p > 0) {
        // With typical-p the first candidate need not be the largest logit: relative to it, not to 1.
        ranking.tokens_for(0, true);
        const int64_t tokens = ranking.tokens_above(choice.min_p * ranking.sum_of_first(1));
        kept = std::min(kept, ranking.sum_of_first(std::max<int64_t>(tokens, 1)));
    }
    return ranking.id(ranking.tokens_for(choice.uniform * kept, false) - 1);
}

}  // namespace puna
