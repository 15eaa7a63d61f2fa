#include "recurrent/linear_attention.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "core/pool.h"
#include "recurrent/sequences.h"

namespace puna {
namespace {

// A layer's memories of so many floats, times all layers, will have left the caches before they are read again.
constexpr int64_t memory_past_caches = 1 << 18;

// Chooses the bases of the call's targets. Returns the base that the memory after each row becomes, or -1.
std::vector<int32_t> choose_bases(const LinearAttention& call) {
    const StateRows& rows = call.rows;
    const Memories& memories = call.memories;
    for (int64_t row = 0; row < rows.rows; row++) {
        const int32_t target = rows.targets[row];
        if (target < 0) continue;
        if (memories.base_of[target]) memories.references[memories.base_of[target]]--;
        memories.base_of[target] = memories.counts[target] = 0;
    }
    std::vector<int32_t> new_bases(static_cast<size_t>(rows.rows), -1);
    int32_t unused = 1;   // no base before it is
    int32_t base = 0, count = 0;
    int64_t last = 0;   // row after which the present base is written, if it has none in `memories` yet
    for (int64_t row = 0; row < rows.rows; row++) {
        if (rows.starts[row] == row) {
            base = memories.base_of[rows.sources[row]], count = memories.counts[rows.sources[row]];
        }
        count += static_cast<int32_t>(call.additions_of_row());
        if (count == additions_per_base) base = -1, count = 0, last = row;
        const int32_t target = rows.targets[row];
        if (target < 0) continue;
        if (base < 0) {
            while (unused <= memories.slots && memories.references[unused]) unused++;
            if (unused > memories.slots) throw std::out_of_range("all bases of memories are in use");
            base = new_bases[static_cast<size_t>(last)] = unused;
        }
        memories.base_of[target] = base, memories.counts[target] = count;
        if (base) memories.references[base]++;
    }
    return new_bases;
}

}  // namespace

PUNA_DEFINE_CHOICE(LinearAttentionKernels, linear_attention_kernels)

void linear_attention(const LinearAttention& call) {
    const LinearAttentionKernels& kernels = linear_attention_kernels();
    const std::vector<int32_t> new_bases = choose_bases(call);
    const int64_t pieces = (call.value_dim + kernels.columns - 1) / kernels.columns;
    const std::vector<int64_t> bounds = sequence_bounds(call.rows);
    const int64_t sequences = static_cast<int64_t>(bounds.size()) - 1, of_each = call.heads * pieces;
    const int64_t size = call.key_dim * call.value_dim;
    const bool nontemporal = sequences * call.heads * size >= memory_past_caches;
    const int64_t rows_each = sequences ? call.rows.rows / sequences : 1;
    const int64_t cost = rows_each * call.key_dim * std::min(call.value_dim, kernels.columns);
    const int64_t grain = floats_per_task / (cost + 1) + 1;
    struct Part {
        int64_t begin, end;   // rows of a sequence
        int64_t head, column;
    };
    const int64_t parts = sequences * of_each;
    const auto part_at = [&](int64_t i) {
        const int64_t sequence = i / of_each;
        return Part{bounds[sequence], bounds[sequence + 1], i % of_each / pieces, i % pieces * kernels.columns};
    };
    const auto read_by = [&](const Part& part) {
        const Memories& memories = call.memories;
        const int64_t slot = call.rows.sources[part.begin], beside = additions_size(call.key_dim, call.value_dim);
        const int64_t base = memories.base_of[slot];
        return LinearAttentionKernels::Ahead{memories.bases + (base * call.heads + part.head) * size + part.column,
                                            memories.additions + (slot * call.heads + part.head) * beside,
                                            memories.counts[slot]};
    };
    const auto room_size = static_cast<size_t>(kernels.room_size(call.key_dim));
    parallel_runs((parts + grain - 1) / grain, [&](int64_t task, int) {
        thread_local std::vector<float> room;
        if (room.size() < room_size) room.resize(room_size);
        for (int64_t i = task * grain; i < std::min(parts, (task + 1) * grain); i++) {
            const Part part = part_at(i);
            LinearAttentionKernels::Ahead next;
            if (nontemporal && i + 1 < parts) next = read_by(part_at(i + 1));
            kernels.rows(call, new_bases.data(), part.head, part.column, part.begin, part.end, nontemporal, next,
                         room.data());
        }
    });
}

}  // namespace puna
