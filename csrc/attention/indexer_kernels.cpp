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

// Multiplies the keys of entries [begin, end) with all queries of a row, tile by tile. A tile's products
// [heads, `stride`] are written to `place(entries before it)`; `use(entries before it, vectors of columns)` follows.
template <class Place, class Use>
void multiply_tiles(const IndexerCall& call, int row, int begin, int end, float* scratch, int64_t stride, Place place,
                    Use use) {
    const int64_t bytes = kv_bytes(call.key_type, call.dim);
    const Rows keys = {static_cast<const uint8_t*>(call.keys), bytes, bytes, call.key_type, call.dim,
                       call.padded_dim()};
    const int32_t* cells = call.cells + call.starts[row];
    const float* q = call.q + int64_t(row) * call.heads * call.dim;
    float* few_keys = scratch;
    float* transposed = few_keys + Vec::width * keys.padded;
    for (int tile = begin; tile < end; tile += tile_cells) {
        const Range used = {0, min(tile_cells, end - tile)};
        const int next = tile + tile_cells;
        CellPrefetcher next_tile(cells + next, max(0, min(tile_cells, end - next)), keys, 1,
                                 few_gather_work);
        transpose_keys(keys, cells + tile, used, next_tile, few_keys, transposed);
        next_tile.prefetch(next_tile.lines_of_multiplying(1));
        const int columns = (used.end + Vec::width - 1) / Vec::width;
        for (int h = 0; h < call.heads; h += max_rows) {
            multiply<false>(min(max_rows, call.heads - h), columns, q + int64_t(h) * call.dim, call.dim, transposed,
                            tile_cells, call.dim, place(tile - begin) + h * stride, stride);
        }
        use(tile - begin, columns);
    }
}

void score_cells(const IndexerCall& call, int row, int begin, int end, float* scores, float* scratch) {
    const float* weights = call.weights + int64_t(row) * call.heads;
    float* products = scratch + int64_t(Vec::width + tile_cells) * call.padded_dim();
    multiply_tiles(
        call, row, begin, end, scratch, tile_cells, [&](int) { return products; },
        [&](int before, int columns) { weigh_products(products, weights, call.heads, columns, scores + before); });
}

void multiply_cells(const IndexerCall& call, int row, int begin, int end, float* products, int64_t stride,
                    float* scratch) {
    multiply_tiles(
        call, row, begin, end, scratch, stride, [&](int before) { return products + before; }, [](int, int) {});
}

}  // namespace

const IndexerKernels PUNA_SET::indexer_kernels = {score_cells, multiply_cells};

}  // namespace puna
