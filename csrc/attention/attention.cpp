#include "attention/attention.h"

#include <algorithm>
#include <vector>

#include "core/pool.h"

namespace puna {
namespace {

// Blocks with at most this many vectors per key/value head are memory-bound: taking several heads reads longer
// stretches.
constexpr int few_vectors = 8;
// Threads take blocks as they become free; with this many for each, none waits long for the last one.
constexpr int blocks_per_thread = 4;

int chunks_of(const AttentionBlock& block) { return block.end_chunk() - block.first_chunk(); }

// The most rows of a block. Keys and values are unpacked once for all of them, but too many rows leave threads idle.
int max_rows(const AttentionCall& call) {
    int vectors = attention_kernels().keeps_chunk(call) ? attention_vectors : attention_tile_vectors;
    const int64_t all = int64_t(call.rows) * call.heads, wanted = blocks_per_thread * thread_count();
    while (vectors > attention_tile_vectors / 4 && all / vectors < wanted) vectors /= 2;
    return std::max(1, vectors / call.group());
}

// Groups neighbouring rows that see parts of the same stretch of the list into blocks.
std::vector<AttentionBlock> plan(const AttentionCall& call) {
    const int most = max_rows(call);
    std::vector<AttentionBlock> runs;
    int64_t tasks = 0;
    for (int row = 0; row < call.rows;) {
        AttentionBlock run = {row, 0, 0, call.kv_heads, call.starts[row], call.end(row)};
        while (row < call.rows && run.rows < most) {
            const int begin = call.starts[row], end = call.end(row);
            const bool shared = begin == run.begin || (begin < run.end && end > run.begin);
            if (run.rows > 0 && !shared) break;
            run.begin = std::min(run.begin, begin);
            run.end = std::max(run.end, end);
            run.rows++;
            row++;
        }
        runs.push_back(run);
        tasks += chunks_of(run);
    }
    const int64_t wanted = thread_count() == 1 ? 1 : blocks_per_thread * thread_count();
    int heads_together = call.kv_heads;
    while (heads_together > 1 && tasks * (call.kv_heads / heads_together) < wanted) heads_together /= 2;
    std::vector<AttentionBlock> blocks;
    for (AttentionBlock run : runs) {
        const int heads = run.rows * call.group() > few_vectors ? 1 : heads_together;
        for (int head = 0; head < call.kv_heads; head += heads) {
            run.kv_head = head, run.kv_heads = std::min(heads, call.kv_heads - head);
            blocks.push_back(run);
        }
    }
    return blocks;
}

// Arrays begin at cache lines: accessing a vector across two of them costs twice as much.
constexpr int line_floats = 16;
int64_t whole_lines(int64_t count) { return (count + line_floats - 1) / line_floats * line_floats; }

int64_t state_size(const AttentionCall& call, int vectors) {
    return 2 * whole_lines(vectors) + int64_t(vectors) * call.padded_value_dim();
}

AttentionState state_at(float* memory, int vectors) {
    return {memory, memory + whole_lines(vectors), memory + 2 * whole_lines(vectors)};
}

// Memory kept between calls: fresh pages would cost more than the data written to them.
class Memory {
public:
    float* at_least(int64_t count) {
        if (int64_t(floats.size()) < count + line_floats) floats.resize(count + line_floats);
        const uintptr_t address = reinterpret_cast<uintptr_t>(floats.data()), line = line_floats * sizeof(float);
        return floats.data() + (line - address % line) % line / sizeof(float);
    }

private:
    std::vector<float> floats;
};

// This thread's memory, for one array at a time.
float* scratch(int64_t count) {
    thread_local Memory memory;
    return memory.at_least(count);
}

// Computes the blocks, each on one thread.
void attend_blocks(const AttentionCall& call, const AttentionKernels& kernel,
                   const std::vector<AttentionBlock>& blocks) {
    const int64_t count = int64_t(blocks.size());
    // In reverse: in a prompt the last rows see most, so starting with them leaves no straggler.
    parallel_for(count, [&](int64_t index, int) {
        const AttentionBlock& block = blocks[count - 1 - index];
        const int vectors = vectors_of(call, block);
        const int64_t size = state_size(call, vectors);
        float* memory = scratch(2 * size + attention_scratch(call, vectors));
        const AttentionState total = state_at(memory, vectors), part = state_at(memory + size, vectors);
        kernel.start(call, block, memory + 2 * size);
        kernel.chunk(call, block, block.first_chunk(), total, memory + 2 * size);
        for (int chunk = block.first_chunk() + 1; chunk < block.end_chunk(); chunk++) {
            kernel.chunk(call, block, chunk, part, memory + 2 * size);
            kernel.merge(call, vectors, total, part);
        }
        kernel.finish(call, block, total);
    });
}

// Computes a few long rows, whose chunks are shared among the threads. Merged in order, they give the same bits.
void attend_chunks(const AttentionCall& call, const AttentionKernels& kernel,
                   const std::vector<AttentionBlock>& blocks) {
    struct Part {
        int block, chunk;
        int64_t state;
    };
    std::vector<Part> parts;
    std::vector<int64_t> first_part;
    int64_t memory_size = 0;
    for (int b = 0; b < int(blocks.size()); b++) {
        first_part.push_back(int64_t(parts.size()));
        for (int chunk = blocks[b].first_chunk(); chunk < blocks[b].end_chunk(); chunk++) {
            parts.push_back({b, chunk, memory_size});
            memory_size += state_size(call, vectors_of(call, blocks[b]));
        }
    }
    thread_local Memory kept;
    float* states = kept.at_least(memory_size);
    parallel_for(int64_t(parts.size()), [&](int64_t index, int) {
        const Part& part = parts[index];
        const AttentionBlock& block = blocks[part.block];
        const int vectors = vectors_of(call, block);
        float* memory = scratch(attention_scratch(call, vectors));
        kernel.start(call, block, memory);
        kernel.chunk(call, block, part.chunk, state_at(states + part.state, vectors), memory);
    });
    for (size_t b = 0; b < blocks.size(); b++) {
        const int vectors = vectors_of(call, blocks[b]);
        const Part* part = &parts[first_part[b]];
        const AttentionState total = state_at(states + part->state, vectors);
        for (int c = 1; c < chunks_of(blocks[b]); c++) {
            kernel.merge(call, vectors, total, state_at(states + part[c].state, vectors));
        }
        kernel.finish(call, blocks[b], total);
    }
}

}  // namespace

PUNA_DEFINE_CHOICE(AttentionKernels, attention_kernels)

void attention(const AttentionCall& call) {
    const AttentionKernels& kernel = attention_kernels();
    const std::vector<AttentionBlock> blocks = plan(call);
    int64_t chunks = 0;
    for (const AttentionBlock& block : blocks) chunks += chunks_of(block);
    const int64_t count = int64_t(blocks.size());
    const bool enough = count >= blocks_per_thread * thread_count() || chunks == count || thread_count() == 1;
    if (enough) attend_blocks(call, kernel, blocks);
    else attend_chunks(call, kernel, blocks);
}

}  // namespace puna
