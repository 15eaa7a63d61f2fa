// Scores of cells for sparse attention, compiled once per instruction set. Every score is summed in a fixed order.
#include "attention/indexer.h"
#include "attention/products.h"
#include "attention/tiles.h"
#include "vector/vector.h"

namespace puna {
namespace {

// The sums over heads of weight * max(product, 0) for a tile's columns; products [heads, tile_cells].
void weigh_products(const float* products, const float* weights, int heads, int columns, float* scores) {
    const Vec zero = Vec::splat(0);
    for (int n = 0; n < columns * Vec::width; n += Vec::width) {
        Vec sum = zero;
        for (int h = 0; h < heads; h++) {
            // A NaN in the second operand stays.
            sum = fma(Vec::splat(weights[h]), max(zero, Vec::load(products + h * tile_cells + n)), sum);
        }
        sum.store(scores + n);
    }
}

void score_cells(const IndexerCall& call, int row, int begin, int end, float* scores, float* scratch) {
    const int64_t bytes = kv_bytes(call.key_type, call.dim);
    const Rows keys = {static_cast<const uint8_t*>(call.keys), bytes, bytes, call.key_type, call.dim,
                       call.padded_dim()};
    const int32_t* cells = call.cells + call.starts[row];
    const float* q = call.q + int64_t(row) * call.heads * call.dim;
    const float* weights = call.weights + int64_t(row) * call.heads;
    float* few_keys = scratch;
    float* transposed = few_keys + Vec::width * keys.padded;
    float* products = transposed + int64_t(tile_cells) * keys.padded;
    for (int tile = begin; tile < end; tile += tile_cells) {
        const Range used = {0, min(tile_cells, end - tile)};
        const int next = tile + tile_cells;
        CellPrefetcher next_tile(cells + next, max(0, min(tile_cells, end - next)), keys, 1, true);
        transpose_keys(keys, cells + tile, used, next_tile, few_keys, transposed);
        next_tile.prefetch(next_tile.lines_of_multiplying(1));
        const int columns = (used.end + Vec::width - 1) / Vec::width;
        for (int h = 0; h < call.heads; h += max_rows) {
            multiply<false>(min(max_rows, call.heads - h), columns, q + int64_t(h) * call.dim, call.dim, transposed,
                            tile_cells, call.dim, products + int64_t(h) * tile_cells, tile_cells);
        }
        weigh_products(products, weights, call.heads, columns, scores + (tile - begin));
    }
}

}  // namespace

const IndexerKernels PUNA_SET::indexer_kernels = {score_cells};

}  // namespace puna
