// Attention and the row operations. Shapes, dtypes and index values are checked here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "attention/attention.h"
#include "attention/groups.h"
#include "attention/indexer.h"
#include "bind_array.h"
#include "program.h"
#include "registrations.h"
#include "rows/rows.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

// Throws std::out_of_range, Python's IndexError, unless 0 <= cells[i] < capacity for all i.
void check_cells(const int32_t* cells, int64_t count, int64_t capacity) {
    int32_t min = 0, max = -1;
    for (int64_t i = 0; i < count; i++) {
        min = cells[i] < min ? cells[i] : min;
        max = cells[i] > max ? cells[i] : max;
    }
    if (min < 0 || max >= capacity) {
        throw std::out_of_range("there are " + std::to_string(capacity) + " cells, and no cell " +
                                std::to_string(min < 0 ? min : max));
    }
}

// Throws std::out_of_range unless the row's list is a part of the `listed` cells.
template <class Call>
void check_range(const Call& call, int64_t row, int64_t listed) {
    const int64_t start = call.starts[row], count = call.counts[row];
    if (start < 0 || count < 0 || start + count > listed) {
        throw std::out_of_range("row " + std::to_string(row) + " names cells " + std::to_string(start) + " to " +
                                std::to_string(start + count) + " of a list of " + std::to_string(listed));
    }
}

// The same for the cells in each row's list, which are a small part of a long table.
template <class Call>
void check_lists(const Call& call, int64_t listed, int64_t capacity) {
    int64_t checked = 0;   // entries from the row's start that an earlier row with this start listed
    for (int64_t i = 0; i < call.rows; i++) {
        check_range(call, i, listed);
        const int64_t start = call.starts[i], count = call.counts[i];
        if (i == 0 || start != call.starts[i - 1]) checked = 0;
        if (count > checked) check_cells(call.cells + start + checked, count - checked, capacity);
        checked = std::max(checked, count);
    }
}

void check_places(const AttentionCall& call, int64_t listed) {
    for (int64_t i = 0; call.places && i < call.rows; i++) {
        if (call.places[i] < 0 || call.places[i] >= listed) {
            throw std::out_of_range("row " + std::to_string(i) + " is at place " + std::to_string(call.places[i]) +
                                    " of a list of " + std::to_string(listed));
        }
    }
}

// The last `dim` numbers of each row.
Stored last_of(Stored whole, int64_t dim) {
    const int last = whole.dims - 1;
    const auto type = KVType(whole.type);
    const bool blocks = type == KVType::q8_0 || type == KVType::q4_0;
    if (dim < 1 || dim > whole.shape[last] || (blocks && (dim % kv_block || whole.shape[last] % kv_block))) {
        throw nb::value_error(("attention: the last " + std::to_string(dim) + " numbers of keys of " +
                               std::to_string(whole.shape[last]) + " cannot be values, or are not whole blocks")
                                  .c_str());
    }
    whole.data = static_cast<uint8_t*>(whole.data) + kv_bytes(type, whole.shape[last] - dim);
    whole.shape[last] = dim;
    return whole;
}

NewArray<float> bind_attention(Argument q_, Argument keys_, int key_type, OptionalArgument values_, int value_type,
                               int64_t value_dim, Argument cells_, Argument starts_, Argument counts_, float scale,
                               float softcap, OptionalArgument sinks_, OptionalArgument bias_,
                               OptionalArgument places_) {
    const auto q = array<float>(q_, "attention q");
    const Stored keys = stored(keys_, key_type, "attention keys");
    const bool within = values_.is_none();
    const Stored values = within ? last_of(keys, value_dim) : stored(values_.argument(), value_type, "attention values");
    const auto cells = array<int32_t>(cells_, "attention cells"), starts = array<int32_t>(starts_, "attention starts"),
               counts = array<int32_t>(counts_, "attention counts");
    const auto sinks = optional_array<float>(sinks_, "attention sinks");
    const auto bias = optional_array<float>(bias_, "attention bias");
    const auto places = optional_array<int32_t>(places_, "attention places");
    bool fits = q.dims == 3 && keys.dims == 3 && values.dims == 3 && cells.dims == 1;
    fits = fits && keys.shape[0] == values.shape[0] && keys.shape[1] == values.shape[1] && keys.shape[2] == q.shape[2];
    fits = fits && values.shape[1] > 0 && q.shape[1] % values.shape[1] == 0;
    fits = fits && starts.is({q.shape[0]}) && counts.is({q.shape[0]}) && (!sinks.given() || sinks.is({q.shape[1]}));
    fits = fits && (!bias.given() || (bias.dims == 2 && bias.shape[0] == q.shape[1] && bias.shape[1] % 2 == 1));
    fits = fits && (!places.given() || places.is({q.shape[0]}));
    if (!fits) {
        throw misfit("attention", {{"q", q_}, {"keys", keys_}, {"values", values_.argument()}, {"cells", cells_},
                                   {"starts", starts_}, {"counts", counts_}, {"sinks", sinks_.argument()},
                                   {"bias", bias_.argument()}, {"places", places_.argument()}});
    }
    auto out = new_array<float>({q.shape[0], q.shape[1], static_cast<intptr_t>(values.shape[2])});
    const auto of_type = KVType(values.type);
    const int64_t value_step = within ? kv_bytes(of_type, keys.shape[2]) : kv_bytes(of_type, values.shape[2]);
    const AttentionCall call = {q.data, keys.data, values.data, value_step, cells.data, starts.data, counts.data,
                                sinks.data, out.data, static_cast<int>(q.shape[0]), static_cast<int>(q.shape[1]),
                                static_cast<int>(values.shape[1]), static_cast<int>(q.shape[2]),
                                static_cast<int>(values.shape[2]), KVType(key_type), of_type, scale,
                                softcap, bias.data, bias.given() ? static_cast<int>(bias.shape[1] / 2) : 0,
                                places.data};
    perform("attention", [call, listed = cells.size, capacity = values.shape[0]] {
        check_lists(call, listed, capacity);
        check_places(call, listed);
        attention(call);
    });
    return out;
}

using Lists = std::tuple<NewArray<int32_t>, NewArray<int32_t>, NewArray<int32_t>>;

// Chooses cells by `choose`, which gets the call with room for its lists.
Lists choose_lists(const char* name, IndexerCall call, const Array<int32_t>& cells, int64_t capacity,
                   std::initializer_list<intptr_t> shape, void (*choose)(const IndexerCall&)) {
    auto chosen = new_array<int32_t>({static_cast<intptr_t>(call.lists() * call.rows * call.width())});
    auto begins = new_array<int32_t>(shape), lengths = new_array<int32_t>(shape);
    call.chosen = chosen.data, call.begins = begins.data, call.lengths = lengths.data;
    perform(name, [call, listed = cells.size, capacity, choose] {
        check_lists(call, listed, capacity);
        choose(call);
    });
    return {chosen, begins, lengths};
}

Lists bind_choose_cells(Argument q_, Argument weights_, Argument keys_, int key_type, Argument cells_,
                        Argument starts_, Argument counts_, int64_t most, int64_t group) {
    const auto q = array<float>(q_, "choose_cells q"), weights = array<float>(weights_, "choose_cells weights");
    const Stored keys = stored(keys_, key_type, "choose_cells keys");
    const auto cells = array<int32_t>(cells_, "choose_cells cells"),
               starts = array<int32_t>(starts_, "choose_cells starts"),
               counts = array<int32_t>(counts_, "choose_cells counts");
    bool fits = q.dims == 3 && keys.dims == 3 && keys.shape[1] == 1 && keys.shape[2] == q.shape[2] && cells.dims == 1;
    fits = fits && weights.is({q.shape[0], q.shape[1]}) && starts.is({q.shape[0]}) && counts.is({q.shape[0]});
    if (!fits) {
        throw misfit("choose_cells", {{"q", q_}, {"weights", weights_}, {"keys", keys_}, {"cells", cells_},
                                      {"starts", starts_}, {"counts", counts_}});
    }
    constexpr int64_t limit = INT32_MAX;
    if (group < 1 || group > limit || most % group) {
        throw nb::value_error(("choose_cells: " + std::to_string(most) + " cells are not whole groups of " +
                               std::to_string(group)).c_str());
    }
    const IndexerCall call = {q.data, weights.data, keys.data, cells.data, starts.data, counts.data,
                              static_cast<int>(q.shape[0]), static_cast<int>(q.shape[1]), static_cast<int>(q.shape[2]),
                              KVType(key_type), static_cast<int>(std::min(most, limit)), 0, 0,
                              static_cast<int>(group), nullptr, nullptr, nullptr};
    if (most < 1 || q.shape[0] * call.width() > limit) {
        throw nb::value_error(("choose_cells: " + std::to_string(most) + " cells for each of " +
                               std::to_string(q.shape[0]) + " rows are none or too many").c_str());
    }
    return choose_lists("choose_cells", call, cells, keys.shape[0], {q.shape[0]}, choose_cells);
}

Lists bind_choose_blocks(Argument q_, Argument keys_, int key_type, Argument cells_, Argument starts_,
                         Argument counts_, int64_t block, int64_t most, int64_t local) {
    const auto q = array<float>(q_, "choose_blocks q");
    const Stored keys = stored(keys_, key_type, "choose_blocks keys");
    const auto cells = array<int32_t>(cells_, "choose_blocks cells"),
               starts = array<int32_t>(starts_, "choose_blocks starts"),
               counts = array<int32_t>(counts_, "choose_blocks counts");
    bool fits = q.dims == 3 && keys.dims == 3 && keys.shape[1] == 1 && keys.shape[2] == q.shape[2] && cells.dims == 1;
    fits = fits && starts.is({q.shape[0]}) && counts.is({q.shape[0]});
    if (!fits) {
        throw misfit("choose_blocks", {{"q", q_}, {"keys", keys_}, {"cells", cells_}, {"starts", starts_},
                                       {"counts", counts_}});
    }
    constexpr int64_t limit = INT32_MAX;
    bool countable = block > 0 && block <= limit && most > 0 && most <= limit / block && local >= 0 && local <= most;
    const IndexerCall call = {q.data, nullptr, keys.data, cells.data, starts.data, counts.data,
                              static_cast<int>(q.shape[0]), static_cast<int>(q.shape[1]), static_cast<int>(q.shape[2]),
                              KVType(key_type), countable ? static_cast<int>(most * block) : 0,
                              countable ? static_cast<int>(block) : 1, static_cast<int>(local), 1, nullptr, nullptr,
                              nullptr};
    countable = countable && q.shape[0] * q.shape[1] * call.width() <= limit && keys.shape[0] * q.shape[1] <= limit;
    if (!countable) {
        throw nb::value_error(("choose_blocks: " + std::to_string(most) + " blocks of " + std::to_string(block) +
                               " cells, " + std::to_string(local) + " of them the last, for each of " +
                               std::to_string(q.shape[0]) + " rows are none or too many").c_str());
    }
    return choose_lists("choose_blocks", call, cells, keys.shape[0], {q.shape[1], q.shape[0]}, choose_blocks);
}

NewArray<float> bind_pool_groups(Argument rows_, Argument cells_, Argument starts_, Argument counts_, Argument bias_,
                                 bool overlapping) {
    const auto stored = array<float>(rows_, "pool_groups rows"), bias = array<float>(bias_, "pool_groups bias");
    const auto cells = array<int32_t>(cells_, "pool_groups cells"),
               starts = array<int32_t>(starts_, "pool_groups starts"),
               counts = array<int32_t>(counts_, "pool_groups counts");
    bool fits = stored.dims == 3 && stored.shape[1] == 1 && bias.dims == 2 && stored.shape[2] == 2 * bias.shape[1];
    fits = fits && bias.shape[0] > 0 && bias.shape[0] <= INT32_MAX / 2 && !(overlapping && bias.shape[1] % 2);
    fits = fits && cells.dims == 1 && starts.dims == 1 && counts.is({starts.shape[0]});
    if (!fits) {
        throw misfit("pool_groups", {{"rows", rows_}, {"cells", cells_}, {"starts", starts_}, {"counts", counts_},
                                     {"bias", bias_}});
    }
    GroupCall call = {stored.data, bias.data, cells.data, starts.data, counts.data, static_cast<int>(starts.shape[0]),
                      static_cast<int>(bias.shape[0]), static_cast<int>(bias.shape[1]), overlapping, nullptr};
    auto entries = new_array<float>({starts.shape[0], static_cast<intptr_t>(call.dim())});
    call.entries = entries.data;
    perform("pool_groups", [call, listed = cells.size, capacity = stored.shape[0]] {
        check_lists(call, listed, capacity);
        pool_groups(call);
    });
    return entries;
}

Lists bind_join_lists(Argument cells_, Argument starts_, Argument counts_, Argument more_, Argument begins_,
                      Argument lengths_, int64_t most) {
    const auto cells = array<int32_t>(cells_, "join_lists cells"), starts = array<int32_t>(starts_, "join_lists starts"),
               counts = array<int32_t>(counts_, "join_lists counts");
    const auto more = array<int32_t>(more_, "join_lists cells"), begins = array<int32_t>(begins_, "join_lists starts"),
               lengths = array<int32_t>(lengths_, "join_lists counts");
    bool fits = cells.dims == 1 && more.dims == 1 && starts.dims == 1;
    for (const auto& each : {counts, begins, lengths}) fits = fits && each.is({starts.shape[0]});
    if (!fits) {
        throw misfit("join_lists", {{"cells", cells_}, {"starts", starts_}, {"counts", counts_}, {"cells", more_},
                                    {"starts", begins_}, {"counts", lengths_}});
    }
    const int64_t rows = starts.shape[0];
    constexpr int64_t limit = INT32_MAX;
    if (most < 0 || most > limit || rows * list_width(most) > limit) {
        throw nb::value_error(("join_lists: " + std::to_string(most) + " cells for each of " + std::to_string(rows) +
                               " rows are too many").c_str());
    }
    auto joined = new_array<int32_t>({static_cast<intptr_t>(rows * list_width(most))});
    auto places = new_array<int32_t>({starts.shape[0]}), sums = new_array<int32_t>({starts.shape[0]});
    const CellLists first = {cells.data, starts.data, counts.data, static_cast<int>(rows)};
    const CellLists second = {more.data, begins.data, lengths.data, static_cast<int>(rows)};
    perform("join_lists", [=, listed = cells.size, others = more.size, to = joined.data, at = places.data,
                           count = sums.data] {
        for (int64_t row = 0; row < rows; row++) {
            check_range(first, row, listed);
            check_range(second, row, others);
            const int64_t together = int64_t(first.counts[row]) + second.counts[row];
            if (together > most) {
                throw std::out_of_range("row " + std::to_string(row) + " has lists of " + std::to_string(together) +
                                        " cells, more than " + std::to_string(most));
            }
        }
        join_lists(first, second, most, to, at, count);
    });
    return {joined, places, sums};
}

void bind_store_rows(Argument target_, int type, Argument cells_, Argument rows_) {
    const Stored target = stored(target_, type, "store_rows target");
    const auto cells = array<int32_t>(cells_, "store_rows cells");
    const auto rows = array<float>(rows_, "store_rows rows");
    bool fits = cells.dims == 1 && rows.dims == target.dims && rows.shape[0] == cells.shape[0];
    for (int i = 1; fits && i < rows.dims; i++) fits = rows.shape[i] == target.shape[i];
    if (!fits) throw misfit("store_rows", {{"target", target_}, {"cells", cells_}, {"rows", rows_}});
    if (!cells.size) return;
    perform("store_rows", [=, capacity = target.shape[0], width = rows.size / cells.size] {
        check_cells(cells.data, cells.size, capacity);
        store_rows(target.data, KVType(type), cells.data, rows.data, cells.size, width);
    });
}

// The number of rows of weights that the rows of x [..., groups, width] cycle through: the rows of weight [groups,
// width], or 1 for [width]. 0 if weight has neither shape.
int64_t groups_of(const Array<float>& x, const Array<float>& weight) {
    if (x.dims < 1 || weight.dims < 1 || x.last() != weight.last()) return 0;
    if (weight.dims == 1) return 1;
    return weight.dims == 2 && x.dims > 1 && x.shape[x.dims - 2] == weight.shape[0] ? weight.shape[0] : 0;
}

NewArray<float> bind_rms_norm(Argument x_, Argument weight_, float eps) {
    const auto x = array<float>(x_, "rms_norm x"), weight = array<float>(weight_, "rms_norm weight");
    const int64_t width = x.last(), groups = groups_of(x, weight);
    if (!groups) throw misfit("rms_norm", {{"x", x_}, {"weight", weight_}});
    auto y = new_array_like<float>(x);
    perform("rms_norm", [=, rows = x.size / std::max<int64_t>(width, 1), out = y.data] {
        rms_norm(x.data, nullptr, weight.data, eps, rows, groups, width, nullptr, out);
    });
    return y;
}

std::pair<NewArray<float>, NewArray<float>> bind_add_rms_norm(Argument x_, Argument residual_, Argument weight_, float eps) {
    const auto x = array<float>(x_, "add_rms_norm x"), residual = array<float>(residual_, "add_rms_norm residual"),
               weight = array<float>(weight_, "add_rms_norm weight");
    const int64_t width = weight.size;
    if (x.dims < 1 || x.last() != width || !x.same_shape(residual.shape, residual.dims)) {
        throw misfit("add_rms_norm", {{"x", x_}, {"residual", residual_}, {"weight", weight_}});
    }
    auto total = new_array_like<float>(x), y = new_array_like<float>(x);
    perform("add_rms_norm", [=, rows = x.size / std::max<int64_t>(width, 1), sum = total.data, out = y.data] {
        rms_norm(x.data, residual.data, weight.data, eps, rows, 1, width, sum, out);
    });
    return {total, y};
}

NewArray<float> bind_layer_norm(Argument x_, Argument weight_, OptionalArgument bias_, float eps) {
    const auto x = array<float>(x_, "layer_norm x"), weight = array<float>(weight_, "layer_norm weight");
    const auto bias = optional_array<float>(bias_, "layer_norm bias");
    const int64_t width = x.last(), groups = groups_of(x, weight);
    if (!groups || (bias.given() && !bias.same_shape(weight.shape, weight.dims))) {
        throw misfit("layer_norm", {{"x", x_}, {"weight", weight_}, {"bias", bias_.argument()}});
    }
    auto y = new_array_like<float>(x);
    perform("layer_norm", [=, rows = x.size / std::max<int64_t>(width, 1), out = y.data] {
        layer_norm(x.data, weight.data, bias.data, eps, rows, groups, width, out);
    });
    return y;
}

void bind_rope(Argument x_, Argument positions_, Argument frequencies_, OptionalArgument axes_, int64_t axis_count,
               float magnitude, bool neox, int64_t begin) {
    const auto x = written<float>(x_, "rope_ x");
    const auto positions = array<int32_t>(positions_, "rope_ positions");
    const auto frequencies = array<float>(frequencies_, "rope_ frequencies");
    const bool several = positions.dims == 2 && !axes_.is_none();
    const auto axes = several ? optional_array<int32_t>(axes_, "rope_ axes") : Array<int32_t>{};
    if (!several) axis_count = 1;
    if (x.dims != 3 || begin < 0 || begin > x.shape[2] || 2 * frequencies.size > x.shape[2] - begin ||
        !(several ? positions.is({x.shape[0], axis_count}) : positions.is({x.shape[0]})) ||
        (several && !axes.is({frequencies.size}))) {
        throw misfit("rope_", {{"x", x_}, {"positions", positions_}, {"frequencies", frequencies_}});
    }
    perform("rope", [=, rows = x.shape[0], heads = x.shape[1], dim = x.shape[2]] {
        rope(x.data + begin, positions.data, axes.data, frequencies.data, magnitude, neox, rows, heads, dim, frequencies.size,
             axis_count);
    });
}

void bind_temper(Argument x_, Argument positions_, double scale, double floor_scale, int64_t first) {
    const auto x = written<float>(x_, "temper_ x");
    const auto positions = array<int32_t>(positions_, "temper_ positions");
    if (x.dims < 1 || !positions.is({x.shape[0]})) throw misfit("temper_", {{"x", x_}, {"positions", positions_}});
    const int64_t rows = x.shape[0];
    perform("temper", [=, width = x.size / std::max<int64_t>(rows, 1)] {
        temper(x.data, positions.data, scale, floor_scale, first, rows, width);
    });
}

// y [n] of two arrays of equal shape, elementwise.
template <void (*kernel)(const float*, const float*, int64_t, float*)>
NewArray<float> bind_pairs(const char* name, const char* first, const char* second, Argument a_, Argument b_) {
    const std::string prefix = std::string(name) + " ";
    const auto a = array<float>(a_, (prefix + first).c_str()), b = array<float>(b_, (prefix + second).c_str());
    if (!a.same_shape(b.shape, b.dims)) throw misfit(name, {{first, a_}, {second, b_}});
    auto y = new_array_like<float>(a);
    perform(name, [=, out = y.data] { kernel(a.data, b.data, a.size, out); });
    return y;
}

NewArray<float> bind_multiply(Argument a_, Argument b_) {
    const auto a = array<float>(a_, "multiply a"), b = array<float>(b_, "multiply b");
    if (a.dims < 2 || !b.is({static_cast<intptr_t>(a.last())})) {
        return bind_pairs<multiply>("multiply", "a", "b", a_, b_);
    }
    auto y = new_array_like<float>(a);
    perform("multiply", [=, rows = a.size / std::max<int64_t>(b.size, 1), out = y.data] {
        multiply_rows(a.data, b.data, rows, b.size, out);
    });
    return y;
}

NewArray<float> bind_sigmoid_gate(Argument x_, Argument gate_) {
    const auto x = array<float>(x_, "sigmoid_gate x"), gate = array<float>(gate_, "sigmoid_gate gate");
    const bool one_gate = x.dims == 2 && gate.is({x.shape[0], 1});
    if (x.dims < 1 || !(one_gate || gate.same_shape(x.shape, x.dims))) {
        throw misfit("sigmoid_gate", {{"x", x_}, {"gate", gate_}});
    }
    auto y = new_array_like<float>(x);
    const int64_t width = x.last(), rows = x.size / std::max<int64_t>(width, 1);
    perform("sigmoid_gate", [=, out = y.data] { sigmoid_gate(x.data, gate.data, rows, width, one_gate, out); });
    return y;
}

// y [n] of one array, elementwise.
template <void (*kernel)(const float*, int64_t, float*)>
NewArray<float> bind_single(const char* name, Argument x_) {
    const auto x = array<float>(x_, name);
    auto y = new_array_like<float>(x);
    perform(name, [=, out = y.data] { kernel(x.data, x.size, out); });
    return y;
}

// y [n] of one array and a number, elementwise.
template <void (*kernel)(const float*, float, int64_t, float*)>
NewArray<float> bind_each(const char* name, Argument x_, float number) {
    const auto x = array<float>(x_, name);
    auto y = new_array_like<float>(x);
    perform(name, [=, out = y.data] { kernel(x.data, number, x.size, out); });
    return y;
}

NewArray<float> bind_softplus(Argument x_, Argument scale_) {
    const auto x = array<float>(x_, "softplus x"), scale = array<float>(scale_, "softplus scale");
    if (x.dims != 2 || !scale.is({x.shape[1]})) throw misfit("softplus", {{"x", x_}, {"scale", scale_}});
    auto y = new_array_like<float>(x);
    perform("softplus", [=, out = y.data] { softplus(x.data, scale.data, x.shape[0], x.shape[1], out); });
    return y;
}

// `count` new arrays [rows, width], with pointers to their values.
std::pair<std::vector<NewArray<float>>, std::vector<float*>> new_arrays(int64_t count, int64_t rows, int64_t width) {
    std::vector<NewArray<float>> arrays;
    std::vector<float*> values;
    for (int64_t i = 0; i < count; i++) {
        arrays.push_back(new_array<float>({static_cast<intptr_t>(rows), static_cast<intptr_t>(width)}));
        values.push_back(arrays.back().data);
    }
    return {arrays, values};
}

std::vector<NewArray<float>> bind_split(Argument x_, int64_t parts) {
    const auto x = array<float>(x_, "split x");
    if (x.dims != 2 || parts < 1 || x.shape[1] % parts) {
        throw nb::value_error(
            ("split: x " + shape_text(x_) + " has no columns for " + std::to_string(parts) + " equal parts").c_str());
    }
    const int64_t rows = x.shape[0], width = x.shape[1] / parts;
    auto [arrays, values] = new_arrays(parts, rows, width);
    perform("split", [=, y = std::move(values)] { split(x.data, rows, parts, width, y.data()); });
    return arrays;
}

NewArray<float> bind_join(const std::vector<Argument>& x_) {
    std::vector<const float*> x;
    std::vector<int64_t> widths;
    std::vector<intptr_t> shape;
    bool fit = !x_.empty();
    for (const Argument& each : x_) {
        const auto given = array<float>(each, "join x");
        if (x.empty()) shape.assign(given.shape, given.shape + given.dims);
        fit = fit && given.dims > 0 && given.dims == static_cast<int>(shape.size()) &&
              std::equal(shape.begin(), shape.end() - 1, given.shape);
        if (!fit) break;
        if (!x.empty()) shape.back() += given.last();
        x.push_back(given.data);
        widths.push_back(given.last());
    }
    if (!fit) {
        std::string shapes;
        for (const Argument& each : x_) shapes += (shapes.empty() ? "" : ", ") + shape_text(each);
        throw nb::value_error(("join: arrays of " + (shapes.empty() ? "no shape" : shapes)).c_str());
    }
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); i++) rows *= shape[i];
    auto y = new_array<float>(shape.data(), static_cast<int>(shape.size()));
    perform("join", [=, x = std::move(x), widths = std::move(widths), out = y.data] {
        join(x.data(), widths.data(), static_cast<int64_t>(x.size()), rows, out);
    });
    return y;
}

std::vector<NewArray<float>> bind_mix(const std::vector<Argument>& x_, Argument mixture_) {
    const auto mixture = array<float>(mixture_, "mix mixture");
    std::vector<const float*> x;
    const auto inputs = static_cast<int64_t>(x_.size());
    if (!inputs || mixture.dims != 2 || mixture.shape[1] % inputs) {
        throw nb::value_error(("mix: a mixture " + shape_text(mixture_) + " is not one of " +
                               std::to_string(inputs) + " arrays").c_str());
    }
    const auto first = array<float>(x_[0], "mix x");
    for (const Argument& each : x_) {
        const auto given = array<float>(each, "mix x");
        if (given.dims != 2 || given.shape[0] != mixture.shape[0] || !given.same_shape(first.shape, first.dims)) {
            throw misfit("mix", {{"x", each}, {"mixture", mixture_}});
        }
        x.push_back(given.data);
    }
    const int64_t rows = first.shape[0], width = first.shape[1], outputs = mixture.shape[1] / inputs;
    auto [arrays, values] = new_arrays(outputs, rows, width);
    perform("mix", [=, x = std::move(x), y = std::move(values)] {
        mix(x.data(), mixture.data, inputs, outputs, rows, width, y.data());
    });
    return arrays;
}

NewArray<float> bind_balance(Argument logits_, float eps, int64_t rounds) {
    const auto logits = array<float>(logits_, "balance logits");
    int64_t count = 1;
    while (logits.dims == 2 && count * count < logits.shape[1]) count++;
    if (logits.dims != 2 || count * count != logits.shape[1] || rounds < 1) {
        throw nb::value_error(("balance: logits " + shape_text(logits_) + " are not those of square matrices, or " +
                               std::to_string(rounds) + " rounds are none").c_str());
    }
    auto y = new_array_like<float>(logits);
    perform("balance", [=, rows = logits.shape[0], out = y.data] {
        balance(logits.data, eps, rounds, rows, count, out);
    });
    return y;
}

NewArray<float> bind_match_rms(Argument x_, Argument like_, float floor) {
    const auto x = array<float>(x_, "match_rms x"), like = array<float>(like_, "match_rms like");
    if (x.dims != 2 || !x.same_shape(like.shape, like.dims)) throw misfit("match_rms", {{"x", x_}, {"like", like_}});
    auto y = new_array_like<float>(x);
    perform("match_rms", [=, out = y.data] { match_rms(x.data, like.data, floor, x.shape[0], x.shape[1], out); });
    return y;
}

NewArray<float> bind_above(Argument x_, float deviations) {
    const auto x = array<float>(x_, "above x");
    if (x.dims != 2) throw misfit("above", {{"x", x_}});
    auto y = new_array_like<float>(x);
    perform("above", [=, out = y.data] { above(x.data, deviations, x.shape[0], x.shape[1], out); });
    return y;
}

}  // namespace

void register_rows(nb::module_& m) {
    m.def("attention", &bind_attention, "q"_a, "keys"_a, "key_type"_a, "values"_a.none(), "value_type"_a,
          "value_dim"_a, "cells"_a, "starts"_a, "counts"_a, "scale"_a, "softcap"_a, "sinks"_a.none(),
          "bias"_a.none(), "places"_a.none(),
          "Attention over index lists; values None are the last `value_dim` numbers of each key.\n\n"
          "Raises IndexError for cells that do not exist.");
    m.def("choose_cells", &bind_choose_cells, "q"_a, "weights"_a, "keys"_a, "key_type"_a, "cells"_a, "starts"_a,
          "counts"_a, "most"_a, "group"_a,
          "Lists of the cells, or groups of them, with the largest scores, in order: cells, starts and counts.\n\n"
          "Raises IndexError for cells that do not exist.");
    m.def("choose_blocks", &bind_choose_blocks, "q"_a, "keys"_a, "key_type"_a, "cells"_a, "starts"_a, "counts"_a,
          "block"_a, "most"_a, "local"_a,
          "Lists of the blocks of cells that each head scores highest: cell * heads + head, starts and counts.\n\n"
          "Raises IndexError for cells that do not exist.");
    m.def("pool_groups", &bind_pool_groups, "rows"_a, "cells"_a, "starts"_a, "counts"_a, "bias"_a, "overlapping"_a,
          "The values of each row's group of cells, weighed by their gates.\n\n"
          "Raises IndexError for cells that do not exist.");
    m.def("join_lists", &bind_join_lists, "cells"_a, "starts"_a, "counts"_a, "more"_a, "begins"_a, "lengths"_a,
          "most"_a,
          "Each row's two lists of cells as one: cells, and each row's start and count.\n\n"
          "Raises IndexError for lists outside of the cells, or longer than `most` together.");
    m.def("store_rows", &bind_store_rows, "target"_a, "type"_a, "cells"_a, "rows"_a,
          "Writes rows of floats to cells; raises IndexError for cells that do not exist.");
    m.def("rms_norm", &bind_rms_norm, "x"_a, "weight"_a, "eps"_a, "RMS norm of rows.");
    m.def("add_rms_norm", &bind_add_rms_norm, "x"_a, "residual"_a, "weight"_a, "eps"_a,
          "x + residual, and the RMS norm of its rows.");
    m.def("layer_norm", &bind_layer_norm, "x"_a, "weight"_a, "bias"_a.none(), "eps"_a, "Layer norm of rows.");
    m.def("rope", &bind_rope, "x"_a, "positions"_a, "frequencies"_a, "axes"_a.none(), "axis_count"_a, "magnitude"_a,
          "neox"_a, "begin"_a,
          "Rotary embedding from `begin` of each head, in place; axes count where a row has several positions.");
    m.def("temper", &bind_temper, "x"_a, "positions"_a, "scale"_a, "floor_scale"_a, "first"_a,
          "Attention temperature tuning of rows, in place, positions counted from `first`.");
    m.def(
        "swiglu", [](Argument gate, Argument up) { return bind_pairs<swiglu>("swiglu", "gate", "up", gate, up); },
        "gate"_a, "up"_a, "silu(gate) * up.");
    m.def(
        "clamped_swiglu",
        [](Argument gate, Argument up) { return bind_pairs<clamped_swiglu>("clamped_swiglu", "gate", "up", gate, up); },
        "gate"_a, "up"_a, "g * sigmoid(1.702 g) * (u + 1), g being at most 7 and u within -7 and 7.");
    m.def(
        "geglu", [](Argument gate, Argument up) { return bind_pairs<geglu>("geglu", "gate", "up", gate, up); },
        "gate"_a, "up"_a, "gelu(gate) * up, GELU by its approximation with tanh.");
    m.def(
        "reglu", [](Argument gate, Argument up) { return bind_pairs<reglu>("reglu", "gate", "up", gate, up); },
        "gate"_a, "up"_a, "max(gate, 0) * up.");
    m.def("gelu", [](Argument x) { return bind_single<gelu>("gelu", x); }, "x"_a, "GELU, exactly.");
    m.def("squared_relu", [](Argument x) { return bind_single<squared_relu>("squared_relu", x); }, "x"_a,
          "max(x, 0)^2.");
    m.def("softplus", &bind_softplus, "x"_a, "scale"_a, "scale * ln(1 + e^x).");
    m.def(
        "signed_root", [](Argument x, float floor) { return bind_each<signed_root>("signed_root", x, floor); }, "x"_a,
        "floor"_a, "sign(x) * sqrt(max(|x|, floor)).");
    m.def("sigmoid", [](Argument x) { return bind_single<sigmoid>("sigmoid", x); }, "x"_a, "1 / (1 + e^-x).");
    m.def("sigmoid_gate", &bind_sigmoid_gate, "x"_a, "gate"_a, "x * sigmoid(gate), by value or by row.");
    m.def(
        "softcap", [](Argument x, float cap) { return bind_each<softcap>("softcap", x, cap); }, "x"_a, "cap"_a,
        "cap * tanh(x / cap).");
    m.def(
        "add", [](Argument a, Argument b) { return bind_pairs<add>("add", "a", "b", a, b); }, "a"_a, "b"_a, "a + b.");
    m.def(
        "offset", [](Argument a, float number) { return bind_each<offset>("offset", a, number); }, "a"_a, "number"_a,
        "a + number.");
    m.def("multiply", &bind_multiply, "a"_a, "b"_a, "a * b, which has the shape of a or of its rows.");
    m.def(
        "scale", [](Argument a, float factor) { return bind_each<scale>("scale", a, factor); }, "a"_a, "factor"_a,
        "a * factor.");
    m.def("split", &bind_split, "x"_a, "parts"_a, "The columns of x in equal parts, each an array.");
    m.def("join", &bind_join, "x"_a, "Arrays side by side along their last axis.");
    m.def("mix", &bind_mix, "x"_a, "mixture"_a, "Sums of arrays, weighed by row.");
    m.def("balance", &bind_balance, "logits"_a, "eps"_a, "rounds"_a,
          "Matrices whose rows and columns sum to nearly 1.");
    m.def("match_rms", &bind_match_rms, "x"_a, "like"_a, "floor"_a, "Rows as large as others.");
    m.def("above", &bind_above, "x"_a, "deviations"_a, "What values have above most of their row.");
}

}  // namespace puna
