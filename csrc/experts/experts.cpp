#include "experts/experts.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/pool.h"
#include "matrix/product.h"
#include "rows/rows.h"

namespace puna {
namespace {

// The rows of one expert's matrix, as the row groups of the stack that hold them. If an expert's rows do not fill
// groups, the first and last group also hold rows of its neighbours.
struct RowRange {
    int64_t first, groups;
    int64_t skip;   // rows of the first group that precede them

    RowRange(const PackedMatrix& stack, int64_t begin, int64_t count) {
        const int64_t R = stack.kernels().rows;
        first = begin / R;
        groups = (begin + count + R - 1) / R - first;
        skip = begin % R;
    }
};

// One token at one expert. Places are sorted by expert, so that an expert's tokens are adjacent.
struct Place {
    int64_t token, expert;
    float share;
};

// At most token_block places of one expert.
struct Block {
    int64_t expert, begin, end;
};

struct Plan {
    std::vector<Place> places;
    std::vector<int64_t> place_of;   // of token t's j-th expert: [tokens, per_token]
    std::vector<Block> blocks;       // by expert
    int64_t experts = 0;             // with at least one place

    // `shares` may be null: all are 1.
    Plan(int64_t count, const int32_t* chosen, const float* shares, int64_t tokens, int64_t per_token)
        : places(static_cast<size_t>(tokens * per_token)), place_of(places.size()) {
        std::vector<int64_t> begins(static_cast<size_t>(count) + 1);
        for (size_t i = 0; i < places.size(); i++) begins[static_cast<size_t>(chosen[i]) + 1]++;
        for (int64_t e = 0; e < count; e++) {
            const int64_t begin = begins[static_cast<size_t>(e)], end = begins[static_cast<size_t>(e) + 1] += begin;
            experts += end > begin;
            for (int64_t b = begin; b < end; b += token_block) {
                blocks.push_back({e, b, std::min(end, b + token_block)});
            }
        }
        for (size_t i = 0; i < places.size(); i++) {
            const int64_t place = begins[static_cast<size_t>(chosen[i])]++;
            places[static_cast<size_t>(place)] = {static_cast<int64_t>(i) / per_token, chosen[i],
                                                  shares ? shares[i] : 1.0f};
            place_of[i] = place;
        }
    }
};

// Products of the experts' matrices with places: a row of `stride` values for each place.
struct Products {
    const PackedMatrix& stack;
    int64_t count, rows;   // experts, and rows of each one's matrix
    float* results;        // [places, stride]
    int64_t stride;        // room(rows)

    // Includes the values of neighbouring experts in the first and last group.
    static int64_t room(int64_t rows) { return rows + 2 * max_group_rows; }

    // The results of place p, which is at `expert`.
    const float* at(int64_t p, int64_t expert) const {
        return results + p * stride + RowRange(stack, expert * rows, rows).skip;
    }

    // Multiplies `input(p)`, the activations of place p as kernels read them; a task is some row groups and a block of
    // places.
    template <class Input>
    void compute(const Plan& plan, int64_t step, const Input& input) const {
        struct Task {
            const Block* block;
            int64_t first, groups;
        };
        const int64_t bytes = static_cast<int64_t>(stack.bytes()) / count * plan.experts;
        std::vector<Task> tasks;
        for (const Block& block : plan.blocks) {
            const int64_t grain = groups_per_task(stack, bytes, block.end - block.begin);
            const RowRange range(stack, block.expert * rows, rows);
            for (int64_t g = 0; g < range.groups; g += grain) {
                tasks.push_back({&block, g, std::min(grain, range.groups - g)});
            }
        }
        parallel_runs(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
            const Task& task = tasks[static_cast<size_t>(i)];
            const int64_t begin = task.block->begin, end = task.block->end;
            const RowRange range(stack, task.block->expert * rows, rows);
            const void* x[token_block];
            float* y[token_block];
            for (int64_t p = begin; p < end; p++) {
                x[p - begin] = input(p);
                y[p - begin] = results + p * stride + task.first * stack.kernels().rows;
            }
            multiply(stack, range.first + task.first, task.groups, x, step, y, end - begin);
        });
    }
};

// gate = min(gate, gate_limit), and up between -up_limit and up_limit; NaN stays.
void limit(float* gate, float* up, float gate_limit, float up_limit, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        gate[i] = gate[i] > gate_limit ? gate_limit : gate[i];
        up[i] = up[i] > up_limit ? up_limit : up[i] < -up_limit ? -up_limit : up[i];
    }
}

// up = activation(gate, up); gate is null for activations without one.
void activate(Activation kind, const float* gate, float* up, int64_t count) {
    const RowKernels& kernels = row_kernels();
    switch (kind) {
        case Activation::swiglu: return kernels.swiglu(gate, up, count, up);
        case Activation::clamped_swiglu: return kernels.clamped_swiglu(gate, up, count, up);
        case Activation::geglu: return kernels.geglu(gate, up, count, up);
        case Activation::reglu: return kernels.reglu(gate, up, count, up);
        case Activation::gelu: return kernels.gelu(up, count, up);
        case Activation::squared_relu: return kernels.squared_relu(up, count, up);
    }
}

// The part of an intermediate row that one task computes: one block of the activations it becomes.
constexpr int64_t piece = chunk_columns;
constexpr int64_t piece_room = piece + 2 * max_group_rows;

class Call {
public:
    Call(const Experts& layer, const float* x, const int32_t* chosen, const float* shares, int64_t tokens,
         int64_t per_token, float* y)
        : layer_(layer), plan_(layer.count, chosen, shares, tokens, per_token), tokens_(tokens),
          per_token_(per_token), width_(layer.down->columns()), rows_(layer.down->rows() / layer.count), y_(y),
          inputs_(x, tokens, layer.up->columns()) {}

    void run() {
        if (layer_.gate) inputs_.want(*layer_.gate, scratch_);
        inputs_.want(*layer_.up, scratch_);
        const auto places = static_cast<int64_t>(plan_.places.size());
        const size_t hidden = scratch_.reserve<uint8_t>(ActivationRows::bytes(*layer_.down, places, width_));
        result_stride_ = Products::room(rows_);
        const size_t results = scratch_.reserve<float>(places * result_stride_);
        scratch_.allocate();
        hidden_.emplace(*layer_.down, scratch_.at<uint8_t>(hidden), places, width_);
        results_ = scratch_.at<float>(results);

        inputs_.prepare(scratch_);
        widen();
        narrow();
        add_up();
    }

private:
    // Gate, up and activation: a task computes 256 values of the intermediate rows of a block of tokens, and stores
    // them in the form that `down` reads. Neighbouring tasks share weights.
    void widen() {
        const int64_t pieces = (width_ + piece - 1) / piece;
        std::vector<std::pair<const Block*, int64_t>> tasks;
        const std::vector<Block>& blocks = plan_.blocks;
        for (size_t first = 0, end; first < blocks.size(); first = end) {
            for (end = first + 1; end < blocks.size() && blocks[end].expert == blocks[first].expert;) end++;
            for (int64_t p = 0; p < pieces; p++) {
                for (size_t b = first; b < end; b++) tasks.push_back({&blocks[b], p * piece});
            }
        }
        parallel_runs(static_cast<int64_t>(tasks.size()), [&](int64_t i, int) {
            thread_local std::vector<float> room(2 * token_block * piece_room);
            const auto& task = tasks[static_cast<size_t>(i)];
            widen(*task.first, task.second, room.data());
        });
    }

    void widen(const Block& block, int64_t column, float* room) {
        const int64_t count = std::min(piece, width_ - column);
        float* const ups = multiply_piece(*layer_.up, layer_.up_bias, block, column, count, room);
        float* const gates = layer_.gate ? multiply_piece(*layer_.gate, layer_.gate_bias, block, column, count,
                                                          room + token_block * piece_room)
                                         : nullptr;
        for (int64_t p = block.begin; p < block.end; p++) {
            const int64_t offset = (p - block.begin) * piece_room;
            if (layer_.up_limit > 0) limit(gates + offset, ups + offset, layer_.gate_limit, layer_.up_limit, count);
            activate(layer_.activation, gates ? gates + offset : nullptr, ups + offset, count);
            hidden_->put(p, column, ups + offset, count);
        }
    }

    // Multiplies rows [column, column + count) of the block's expert by its tokens and adds the bias:
    // [places][piece_room], in `room`.
    float* multiply_piece(const PackedMatrix& stack, const float* bias, const Block& block, int64_t column,
                          int64_t count, float* room) {
        const RowRange range(stack, block.expert * width_ + column, count);
        const ActivationRows& inputs = inputs_.rows(stack);
        const void* x[token_block];
        float* y[token_block];
        for (int64_t p = block.begin; p < block.end; p++) {
            x[p - block.begin] = inputs[plan_.places[static_cast<size_t>(p)].token];
            y[p - block.begin] = room + (p - block.begin) * piece_room;
        }
        multiply(stack, range.first, range.groups, x, inputs.step, y, block.end - block.begin);
        room += range.skip;
        for (int64_t p = block.begin; p < block.end; p++) {
            float* product = room + (p - block.begin) * piece_room;
            if (layer_.scale_inputs) {   // the product with a multiple of x is that multiple of the product
                const float share = plan_.places[static_cast<size_t>(p)].share;
                for (int64_t i = 0; i < count; i++) product[i] *= share;
            }
            if (bias) {
                const float* of_expert = bias + block.expert * width_ + column;
                for (int64_t i = 0; i < count; i++) product[i] += of_expert[i];
            }
        }
        return room;
    }

    Products products() const { return {*layer_.down, layer_.count, rows_, results_, result_stride_}; }

    void narrow() {
        products().compute(plan_, hidden_->step, [&](int64_t p) { return (*hidden_)[p]; });
    }

    // Sums each token's results, in the order in which its experts were chosen.
    void add_up() {
        const int64_t grain = 16384 / (rows_ * per_token_ + 1) + 1;
        parallel_ranges(tokens_, grain, [&](int64_t first, int64_t last, int) {
            for (int64_t t = first; t < last; t++) {
                float* y = y_ + t * rows_;
                std::fill(y, y + rows_, 0.0f);
                const int64_t* places = plan_.place_of.data() + t * per_token_;
                for (int64_t j = 0; j < per_token_; j++) add(places[j], y);
            }
        });
    }

    void add(int64_t at, float* y) {
        const Place& place = plan_.places[static_cast<size_t>(at)];
        const float share = layer_.scale_inputs ? 1.0f : place.share;
        const float* result = products().at(at, place.expert);
        if (layer_.down_bias) {
            const float* bias = layer_.down_bias + place.expert * rows_;
            for (int64_t i = 0; i < rows_; i++) y[i] += share * (result[i] + bias[i]);
        } else {
            for (int64_t i = 0; i < rows_; i++) y[i] += share * result[i];
        }
    }

    const Experts& layer_;
    const Plan plan_;
    const int64_t tokens_, per_token_;
    const int64_t width_, rows_;       // of the intermediate rows and of the result
    float* const y_;
    Activations inputs_;
    Scratch scratch_;
    std::optional<ActivationRows> hidden_;   // intermediate rows as `down` reads them: [places, width]
    float* results_ = nullptr;               // the experts' results: [places, result_stride_]
    int64_t result_stride_ = 0;
};

}  // namespace

void experts(const Experts& layer, const float* x, const int32_t* chosen, const float* shares, int64_t tokens,
             int64_t per_token, float* y) {
    if (tokens > 0) Call(layer, x, chosen, shares, tokens, per_token, y).run();
}

void expert_linear(const PackedMatrix& stack, const float* bias, int64_t count, const float* x, const int32_t* chosen,
                   int64_t tokens, float* y) {
    if (tokens == 0) return;
    const Plan plan(count, chosen, nullptr, tokens, 1);
    const int64_t rows = stack.rows() / count, stride = Products::room(rows);
    Activations inputs(x, tokens, stack.columns());
    Scratch scratch;
    inputs.want(stack, scratch);
    const size_t results = scratch.reserve<float>(tokens * stride);
    scratch.allocate();
    inputs.prepare(scratch);
    const ActivationRows& given = inputs.rows(stack);
    const Products products = {stack, count, rows, scratch.at<float>(results), stride};
    products.compute(plan, given.step, [&](int64_t p) { return given[plan.places[static_cast<size_t>(p)].token]; });
    parallel_ranges(tokens, 16384 / (rows + 1) + 1, [&](int64_t first, int64_t last, int) {
        for (int64_t t = first; t < last; t++) {
            const float* product = products.at(plan.place_of[static_cast<size_t>(t)], chosen[t]);
            const float* of_expert = bias ? bias + chosen[t] * rows : nullptr;
            for (int64_t i = 0; i < rows; i++) y[t * rows + i] = product[i] + (of_expert ? of_expert[i] : 0.0f);
        }
    });
}

}  // namespace puna
