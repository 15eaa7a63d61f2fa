#include "attention.h"

#include <algorithm>
#include <vector>

#include "core/pool.h"

namespace puna {
namespace {

const AttentionKernels& kernels() {
#if defined(__x86_64__)
    if (cpu_level() == CpuLevel::avx512) return attention_avx512;
    if (cpu_level() == CpuLevel::avx2) return attention_avx2;
#endif
    return attention_portable;
}

// Query vectors to a block: enough to make good use of each key loaded, few enough to stay in the caches.
constexpr int block_vectors = attention_rows;
// Blocks with fewer than this per key/value head are bound by memory: taking several heads reads longer stretches.
constexpr int few_vectors = 8;

int chunks_of(const AttentionCall& call, const AttentionBlock& block) {
    int longest = 0;
    for (int r = 0; r < block.rows; r++) longest = std::max(longest, call.counts[block.first + r]);
    return std::max(1, (longest + attention_chunk - 1) / attention_chunk);
}

// Neighbouring rows with the same start see prefixes of one list: they make up blocks.
std::vector<AttentionBlock> plan(const AttentionCall& call) {
    const int most_rows = std::max(1, block_vectors / call.group());
    std::vector<AttentionBlock> runs;
    int64_t tasks = 0;
    for (int row = 0; row < call.rows;) {
        int end = row + 1;
        while (end < call.rows && end - row < most_rows && call.starts[end] == call.starts[row]) end++;
        runs.push_back({row, end - row, 0, call.kv_heads});
        tasks += chunks_of(call, runs.back());
        row = end;
    }
    const int64_t wanted = thread_count() == 1 ? 1 : 4 * thread_count();
    int heads_together = call.kv_heads;
    while (heads_together > 1 && tasks * (call.kv_heads / heads_together) < wanted) heads_together /= 2;
    std::vector<AttentionBlock> blocks;
    for (const AttentionBlock& run : runs) {
        const int heads = run.rows * call.group() > few_vectors ? 1 : heads_together;
        for (int head = 0; head < call.kv_heads; head += heads) {
            blocks.push_back({run.first, run.rows, head, std::min(heads, call.kv_heads - head)});
        }
    }
    return blocks;
}

int64_t state_size(const AttentionCall& call, int vectors) { return int64_t(vectors) * (2 + call.padded_value_dim()); }

AttentionState state_at(float* memory, int vectors) { return {memory, memory + vectors, memory + 2 * vectors}; }

float* scratch(int64_t count) {
    thread_local std::vector<float> memory;
    if (int64_t(memory.size()) < count) memory.resize(count);
    return memory.data();
}

}  // namespace

void attention(const AttentionCall& call) {
    const AttentionKernels& kernel = kernels();
    std::vector<AttentionBlock> blocks = plan(call);
    std::vector<int> chunks;
    int all_chunks = 0;
    for (const AttentionBlock& block : blocks) {
        chunks.push_back(chunks_of(call, block));
        all_chunks += chunks.back();
    }
    const int64_t count = int64_t(blocks.size());

    if (count >= 4 * thread_count() || all_chunks == count || thread_count() == 1) {
        // Backwards: in a prompt the last rows see most, and starting with them leaves no straggler.
        parallel_for(count, [&](int64_t index, int) {
            const AttentionBlock& block = blocks[count - 1 - index];
            const int vectors = vectors_of(call, block);
            const int64_t size = state_size(call, vectors);
            float* memory = scratch(2 * size + attention_scratch(call, vectors));
            const AttentionState total = state_at(memory, vectors), chunk = state_at(memory + size, vectors);
            kernel.chunk(call, block, 0, total, memory + 2 * size);
            for (int c = 1; c < chunks[count - 1 - index]; c++) {
                kernel.chunk(call, block, c, chunk, memory + 2 * size);
                kernel.merge(call, vectors, total, chunk);
            }
            kernel.finish(call, block, total);
        });
        return;
    }

    // A few long rows: their chunks are the work to share out. Merged in order, they give the same bits as above.
    struct Part {
        int block, chunk;
        int64_t state;
    };
    std::vector<Part> parts;
    std::vector<int> first_part;
    int64_t memory_size = 0;
    for (int b = 0; b < count; b++) {
        first_part.push_back(int(parts.size()));
        for (int c = 0; c < chunks[b]; c++) {
            parts.push_back({b, c, memory_size});
            memory_size += state_size(call, vectors_of(call, blocks[b]));
        }
    }
    std::vector<float> states(memory_size);
    parallel_for(int64_t(parts.size()), [&](int64_t index, int) {
        const Part& part = parts[index];
        const AttentionBlock& block = blocks[part.block];
        const int vectors = vectors_of(call, block);
        kernel.chunk(call, block, part.chunk, state_at(states.data() + part.state, vectors),
                     scratch(attention_scratch(call, vectors)));
    });
    for (int b = 0; b < count; b++) {
        const int vectors = vectors_of(call, blocks[b]);
        const Part* part = &parts[first_part[b]];
        const AttentionState total = state_at(states.data() + part->state, vectors);
        for (int c = 1; c < chunks[b]; c++) {
            kernel.merge(call, vectors, total, state_at(states.data() + part[c].state, vectors));
        }
        kernel.finish(call, blocks[b], total);
    }
}

}  // namespace puna
