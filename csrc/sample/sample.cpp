#include "sample/sample.h"

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

// Where a running sum over tokens in descending order arrives: the last token taken, and the sum with it.
struct Cut {
    double sum;
    int32_t id;
};

// Tokens in descending order with weights e^((logit - largest) / temperature), put in order only as far as someone
// looks: level by level (with a real model's logits the first few hold a few dozen of a hundred thousand tokens),
// and inside a level by halving.
class Ranking {
public:
    Ranking(const float* logits, int64_t count, float largest, float temperature)
        : logits_(logits), count_(count), largest_(largest), temperature_(temperature), tokens_(token_buffer()) {
        tokens_.clear();
    }

    // All tokens.
    void rank_all() {
        total_ = sample_kernels().sum(logits_, count_, largest_, temperature_);
        reached_ = infinity;
    }

    // Just these, of which the first is the largest.
    void rank(const std::vector<Candidate>& candidates) {
        for (const Candidate& candidate : candidates) append(candidate.logit, candidate.id);
        end_level();
        total_ = levels_[0].sum;
        reached_ = -infinity;
    }

    double total() const { return total_; }

    // The shortest start whose sum is beyond `mass` (or reaches it, unless `strictly`); everything if none is.
    Cut cut(double mass, bool strictly) {
        const auto enough = [=](double sum) { return strictly ? sum > mass : sum >= mass; };
        double before_level = 0;
        for (size_t i = 0; i < levels_.size() || extend(); i++) {
            const bool last = i + 1 == levels_.size() && reached_ == -infinity;
            if (last || enough(before_level + levels_[i].sum)) return cut_within(levels_[i], before_level, enough);
            before_level += levels_[i].sum;
        }
        return cut_within(levels_.back(), before_level - levels_.back().sum, enough);
    }

    // Sum of the tokens that weigh at least `least`.
    double sum_above(double least) {
        double sum = 0;
        bool more = true;
        for (size_t i = 0; more && (i < levels_.size() || extend()); i++) {
            for (int64_t t = levels_[i].begin; t < levels_[i].end; t++) {
                if (tokens_[t].weight >= least) sum += tokens_[t].weight;
                else more = false;
            }
        }
        return sum;
    }

    double first_weight() {
        if (levels_.empty()) extend();
        double most = 0;
        for (int64_t t = 0; t < levels_[0].end; t++) most = std::max(most, tokens_[t].weight);
        return most;
    }

private:
    struct Token : Candidate {
        double weight;
    };
    struct Level {
        int64_t begin, end;
        double sum;
    };

    // Kept from call to call: megabytes when the logits are flat.
    static std::vector<Token>& token_buffer() {
        thread_local std::vector<Token> buffer;
        return buffer;
    }

    void append(float logit, int32_t id) {
        const double weight = std::exp(double(logit / temperature_ - largest_ / temperature_));
        tokens_.push_back({{logit, id}, weight});
    }

    void end_level() {
        Level level{levels_.empty() ? 0 : levels_.back().end, int64_t(tokens_.size()), 0};
        for (int64_t t = level.begin; t < level.end; t++) level.sum += tokens_[t].weight;
        levels_.push_back(level);
    }

    template <class Enough>
    Cut cut_within(const Level& level, double sum, Enough enough) {
        auto begin = tokens_.begin() + level.begin, end = tokens_.begin() + level.end;
        while (end - begin > 64) {
            const auto middle = begin + (end - begin) / 2;
            std::nth_element(begin, middle, end, before);
            double half = 0;
            for (auto t = begin; t != middle; ++t) half += t->weight;
            if (enough(sum + half)) {
                end = middle;
            } else {
                sum += half;
                begin = middle;
            }
        }
        std::sort(begin, end, before);
        for (; end - begin > 1 && !enough(sum + begin->weight); ++begin) sum += begin->weight;
        return {sum + begin->weight, begin->id};
    }

    // Collects the tokens of the next lower level; false when none are left.
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
            for (int64_t i = 0; i < found; i++) append(logits_[ids[i]], ids[i]);
            end_level();
            return true;
        }
        return false;
    }

    const float* logits_;
    int64_t count_;
    float largest_, temperature_;
    float reached_ = infinity;   // tokens above this logit are in a level; those of -infinity never are
    float depth_ = 0;            // how many steps below the largest that is
    double total_ = 0;
    std::vector<Token>& tokens_;
    std::vector<Level> levels_;   // never empty once asked: the largest logit is finite
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

PUNA_DEFINE_CHOICE(SampleKernels, sample_kernels)

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
    if (choice.top_p < 1) kept = ranking.cut(choice.top_p * kept, true).sum;
    // With typical-p the first candidate need not be the largest logit: its weight need not be 1.
    if (choice.min_p > 0) kept = std::min(kept, ranking.sum_above(choice.min_p * ranking.first_weight()));
    return ranking.cut(choice.uniform * kept, false).id;
}

}  // namespace puna
