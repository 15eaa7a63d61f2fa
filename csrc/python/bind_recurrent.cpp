#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>

#include "bind_array.h"
#include "program.h"
#include "recurrent/linear_attention.h"
#include "recurrent/ngrams.h"
#include "recurrent/recurrent.h"
#include "recurrent/selective_scan.h"
#include "registrations.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace puna {
namespace {

// Throws std::out_of_range unless the given rows and slots exist.
void check_states(const StateRows& call, int64_t slots) {
    for (int64_t row = 0; row < call.rows; row++) {
        const int64_t start = call.starts[row], source = call.sources[row], target = call.targets[row];
        if (start != row && (row == 0 || start != call.starts[row - 1])) {
            throw std::out_of_range("row " + std::to_string(row) + " goes on with rows from " + std::to_string(start) +
                                    ", but the row before it does not");
        }
        if (source < 0 || source >= slots || target < -1 || target >= slots) {
            throw std::out_of_range("row " + std::to_string(row) + " reads state " + std::to_string(source) +
                                    " and writes state " + std::to_string(target) + " of " + std::to_string(slots));
        }
    }
}

// Throws std::out_of_range unless the slots' bases and additions exist, and no slot is written twice or also read.
void check_memories(const LinearAttention& call) {
    const Memories& memories = call.memories;
    std::vector<bool> written(static_cast<size_t>(memories.slots));
    for (int64_t row = 0; row < call.rows.rows; row++) {
        const int32_t target = call.rows.targets[row];
        if (target < 0) continue;
        if (written[static_cast<size_t>(target)]) {
            throw std::out_of_range("memory " + std::to_string(target) + " is written twice");
        }
        written[static_cast<size_t>(target)] = true;
    }
    for (int64_t row = 0; row < call.rows.rows; row++) {
        const int32_t source = call.rows.sources[row];
        if (written[static_cast<size_t>(source)]) {
            throw std::out_of_range("memory " + std::to_string(source) + " is both read and written");
        }
        for (const int32_t slot : {source, call.rows.targets[row]}) {
            if (slot < 0) continue;
            const int32_t base = memories.base_of[slot], count = memories.counts[slot];
            if (base < 0 || base > memories.slots || count < 0 || count >= additions_per_base ||
                count % call.additions_of_row()) {
                throw std::out_of_range("memory " + std::to_string(slot) + " has base " + std::to_string(base) +
                                        " and " + std::to_string(count) + " additions");
            }
        }
    }
}

NewArray<float> bind_short_conv(Argument projected_, Argument weight_, OptionalArgument bias_, Argument states_,
                                Argument starts_, Argument sources_, Argument targets_, bool gated,
                                bool activated) {
    const auto projected = array<float>(projected_, "short_conv projected");
    const auto weight = array<float>(weight_, "short_conv weight");
    const auto bias = optional_array<float>(bias_, "short_conv bias");
    const auto states = written<float>(states_, "short_conv states");
    const auto starts = array<int32_t>(starts_, "short_conv starts"),
               sources = array<int32_t>(sources_, "short_conv sources"),
               targets = array<int32_t>(targets_, "short_conv targets");
    bool fits = weight.dims == 2 && projected.dims == 2 && states.dims == 3 && weight.shape[0] > 0;
    if (fits) {
        const int64_t rows = projected.shape[0], taps = weight.shape[0], channels = weight.shape[1];
        fits = projected.shape[1] == (gated ? 3 * channels : channels) && states.shape[1] == taps - 1 &&
               states.shape[2] == channels && starts.is({rows}) && sources.is({rows}) && targets.is({rows}) &&
               (!bias.given() || bias.is({channels}));
    }
    if (!fits) {
        throw misfit("short_conv", {{"projected", projected_}, {"weight", weight_}, {"bias", bias_.argument()},
                                    {"states", states_}, {"starts", starts_}, {"sources", sources_},
                                    {"targets", targets_}});
    }
    auto y = new_array<float>({projected.shape[0], weight.shape[1]});
    const StateRows rows = {starts.data, sources.data, targets.data, projected.shape[0]};
    const ShortConv call = {rows,   projected.data,  weight.data,     bias.data, states.data,
                            y.data, weight.shape[1], weight.shape[0], gated,     activated};
    perform("short_conv", [call, slots = states.shape[0]] {
        check_states(call.rows, slots);
        short_conv(call);
    });
    return y;
}

NewArray<float> bind_pool_recent(Argument values_, Argument gates_, Argument bias_, Argument states_, Argument starts_,
                                 Argument sources_, Argument targets_) {
    const auto values = array<float>(values_, "pool_recent values"), gates = array<float>(gates_, "pool_recent gates"),
               bias = array<float>(bias_, "pool_recent bias");
    const auto states = written<float>(states_, "pool_recent states");
    const auto starts = array<int32_t>(starts_, "pool_recent starts"),
               sources = array<int32_t>(sources_, "pool_recent sources"),
               targets = array<int32_t>(targets_, "pool_recent targets");
    bool fits = values.dims == 2 && bias.dims == 2 && states.dims == 3 && bias.shape[0] > 0;
    if (fits) {
        const int64_t rows = values.shape[0], channels = values.shape[1], taps = bias.shape[0];
        fits = gates.is({rows, channels}) && bias.shape[1] == channels && states.shape[1] == taps - 1 &&
               states.shape[2] == 2 * channels && starts.is({rows}) && sources.is({rows}) && targets.is({rows});
    }
    if (!fits) {
        throw misfit("pool_recent", {{"values", values_}, {"gates", gates_}, {"bias", bias_}, {"states", states_},
                                     {"starts", starts_}, {"sources", sources_}, {"targets", targets_}});
    }
    auto y = new_array<float>({values.shape[0], values.shape[1]});
    const StateRows rows = {starts.data, sources.data, targets.data, values.shape[0]};
    const PoolRecent call = {rows,   values.data,     gates.data,   bias.data, states.data,
                             y.data, values.shape[1], bias.shape[0]};
    perform("pool_recent", [call, slots = states.shape[0]] {
        check_states(call.rows, slots);
        pool_recent(call);
    });
    return y;
}

NewArray<float> bind_linear_attention(Argument queries_, Argument keys_, Argument values_, Argument decays_,
                                      OptionalArgument betas_, OptionalArgument skips_, OptionalArgument probes_,
                                      OptionalArgument removals_, Argument bases_, Argument additions_,
                                      Argument book_, Argument starts_, Argument sources_, Argument targets_,
                                      bool delta, bool tiled) {
    const auto queries = array<float>(queries_, "linear_attention queries"),
               keys = array<float>(keys_, "linear_attention keys"),
               values = array<float>(values_, "linear_attention values"),
               decays = array<float>(decays_, "linear_attention decays");
    const auto betas = optional_array<float>(betas_, "linear_attention betas"),
               skips = optional_array<float>(skips_, "linear_attention skips"),
               probes = optional_array<float>(probes_, "linear_attention probes"),
               removals = optional_array<float>(removals_, "linear_attention removals");
    const auto bases = written<float>(bases_, "linear_attention bases"),
               additions = written<float>(additions_, "linear_attention additions");
    const auto book = written<int32_t>(book_, "linear_attention book");
    const auto starts = array<int32_t>(starts_, "linear_attention starts"),
               sources = array<int32_t>(sources_, "linear_attention sources"),
               targets = array<int32_t>(targets_, "linear_attention targets");
    bool fits = keys.dims == 3 && values.dims == 3 && bases.dims == 4 && (decays.dims == 2 || decays.dims == 3);
    if (fits) {
        const int64_t rows = keys.shape[0], key_heads = keys.shape[1], key_dim = keys.shape[2];
        const int64_t heads = values.shape[1], value_dim = values.shape[2];
        fits = queries.is({rows, key_heads, key_dim}) && values.shape[0] == rows && key_heads > 0 &&
               heads % key_heads == 0 && bases.is({bases.shape[0], heads, key_dim, value_dim}) &&
               additions.is({bases.shape[0] - 1, heads, additions_size(key_dim, value_dim)}) &&
               book.is({3, bases.shape[0]}) &&
               (decays.dims == 2 ? decays.is({rows, heads}) : decays.is({rows, heads, key_dim})) &&
               (!betas.given() || betas.is({rows, heads})) && (!skips.given() || skips.is({heads})) &&
               starts.is({rows}) && sources.is({rows}) && targets.is({rows}) && probes.given() == removals.given();
        if (probes.given()) {
            fits = fits && !delta && probes.is({rows, key_heads, key_dim}) && removals.is({rows, key_heads, key_dim});
        }
    }
    if (!fits) {
        throw misfit("linear_attention",
                     {{"queries", queries_}, {"keys", keys_}, {"values", values_}, {"decays", decays_},
                      {"betas", betas_.argument()}, {"skips", skips_.argument()}, {"probes", probes_.argument()},
                      {"removals", removals_.argument()}, {"bases", bases_}, {"additions", additions_},
                      {"book", book_}, {"starts", starts_}, {"sources", sources_}, {"targets", targets_}});
    }
    auto y = new_array<float>({values.shape[0], values.shape[1], values.shape[2]});
    const StateRows rows = {starts.data, sources.data, targets.data, keys.shape[0]};
    const int64_t of_slots = bases.shape[0];
    const Memories memories = {bases.data, additions.data, book.data, book.data + of_slots, book.data + 2 * of_slots,
                               of_slots - 1};
    const LinearAttention call = {rows,          queries.data,    keys.data,       values.data,      decays.data,
                                  betas.data,    skips.data,      probes.data,     removals.data,    memories,
                                  y.data,        values.shape[1], keys.shape[1],   keys.shape[2],    values.shape[2],
                                  delta,         decays.dims == 3, tiled};
    perform("linear_attention", [call] {
        check_states(call.rows, call.memories.slots);
        check_memories(call);
        linear_attention(call);
    });
    return y;
}

NewArray<float> bind_selective_scan(Argument x_, Argument steps_, Argument rates_, Argument keys_, Argument queries_,
                                    Argument skips_, Argument states_, Argument starts_, Argument sources_,
                                    Argument targets_) {
    const auto x = array<float>(x_, "selective_scan x"), steps = array<float>(steps_, "selective_scan steps"),
               rates = array<float>(rates_, "selective_scan rates"), keys = array<float>(keys_, "selective_scan keys"),
               queries = array<float>(queries_, "selective_scan queries"),
               skips = array<float>(skips_, "selective_scan skips");
    const auto states = written<float>(states_, "selective_scan states");
    const auto starts = array<int32_t>(starts_, "selective_scan starts"),
               sources = array<int32_t>(sources_, "selective_scan sources"),
               targets = array<int32_t>(targets_, "selective_scan targets");
    bool fits = x.dims == 2 && rates.dims == 2 && states.dims == 3;
    if (fits) {
        const int64_t rows = x.shape[0], channels = x.shape[1], entries = rates.shape[0];
        fits = steps.is({rows, channels}) && rates.is({entries, channels}) && keys.is({rows, entries}) &&
               queries.is({rows, entries}) && skips.is({channels}) && states.shape[1] == entries &&
               states.shape[2] == channels && starts.is({rows}) && sources.is({rows}) && targets.is({rows});
    }
    if (!fits) {
        throw misfit("selective_scan", {{"x", x_}, {"steps", steps_}, {"rates", rates_}, {"keys", keys_},
                                        {"queries", queries_}, {"skips", skips_}, {"states", states_},
                                        {"starts", starts_}, {"sources", sources_}, {"targets", targets_}});
    }
    auto y = new_array<float>({x.shape[0], x.shape[1]});
    const StateRows rows = {starts.data, sources.data, targets.data, x.shape[0]};
    const SelectiveScan call = {rows,       x.data,      steps.data, rates.data, keys.data,      queries.data,
                                skips.data, states.data, y.data,     x.shape[1], rates.shape[0]};
    perform("selective_scan", [call, slots = states.shape[0]] {
        check_states(call.rows, slots);
        selective_scan(call);
    });
    return y;
}

// Throws std::out_of_range unless every head has rows, all with numbers that int32 holds.
void check_parts(const int64_t* sizes, const int64_t* offsets, int64_t heads) {
    for (int64_t head = 0; head < heads; head++) {
        const int64_t size = sizes[head], offset = offsets[head];
        if (size < 1 || size > INT32_MAX || offset < 0 || offset > INT32_MAX - size) {
            throw std::out_of_range("a head of n-grams cannot have " + std::to_string(size) + " rows from " +
                                    std::to_string(offset) + " on");
        }
    }
}

NewArray<int32_t> bind_ngram_rows(Argument tokens_, Argument multipliers_, Argument sizes_, Argument offsets_,
                                  int64_t boundary, Argument states_, Argument starts_, Argument sources_,
                                  Argument targets_) {
    const auto tokens = array<int32_t>(tokens_, "ngram_rows tokens");
    const auto multipliers = array<int64_t>(multipliers_, "ngram_rows multipliers"),
               sizes = array<int64_t>(sizes_, "ngram_rows sizes"),
               offsets = array<int64_t>(offsets_, "ngram_rows offsets");
    const auto states = written<float>(states_, "ngram_rows states");
    const auto starts = array<int32_t>(starts_, "ngram_rows starts"),
               sources = array<int32_t>(sources_, "ngram_rows sources"),
               targets = array<int32_t>(targets_, "ngram_rows targets");
    bool fits = tokens.dims == 1 && multipliers.dims == 1 && multipliers.size > 1 && sizes.dims == 1 &&
                states.dims == 2 && boundary >= 0 && boundary < ngram_token_limit;
    if (fits) {
        const int64_t rows = tokens.size, kept = multipliers.size - 1;
        fits = sizes.size > 0 && sizes.size % kept == 0 && offsets.is({sizes.size}) && states.shape[1] == kept &&
               starts.is({rows}) && sources.is({rows}) && targets.is({rows});
    }
    if (!fits) {
        throw misfit("ngram_rows", {{"tokens", tokens_}, {"multipliers", multipliers_}, {"sizes", sizes_},
                                    {"offsets", offsets_}, {"states", states_}, {"starts", starts_},
                                    {"sources", sources_}, {"targets", targets_}});
    }
    auto found = new_array<int32_t>({tokens.shape[0], sizes.shape[0]});
    const StateRows rows = {starts.data, sources.data, targets.data, tokens.size};
    const NgramRows call = {rows,        tokens.data, multipliers.data, sizes.data, offsets.data,
                            states.data, found.data,  multipliers.size, sizes.size, static_cast<int32_t>(boundary)};
    perform("ngram_rows", [call, slots = states.shape[0]] {
        check_states(call.rows, slots);
        check_parts(call.sizes, call.offsets, call.heads);
        ngram_rows(call);
    });
    return found;
}

}  // namespace

void register_recurrent(nb::module_& m) {
    m.def("additions_per_base", [] { return additions_per_base; }, "Additions after which a memory becomes a base.");
    m.def("additions_size", &additions_size, "key_dim"_a, "value_dim"_a, "Floats beside the base of a head's memory.");
    m.def("short_conv", &bind_short_conv, "projected"_a, "weight"_a, "bias"_a.none(), "states"_a, "starts"_a,
          "sources"_a, "targets"_a, "gated"_a, "activated"_a,
          "Short convolution, gated, through SiLU or plain; raises IndexError for rows and states that do not exist.");
    m.def("pool_recent", &bind_pool_recent, "values"_a, "gates"_a, "bias"_a, "states"_a, "starts"_a, "sources"_a,
          "targets"_a,
          "Means of the last rows weighed by gates; raises IndexError for rows and states that do not exist.");
    m.def("linear_attention", &bind_linear_attention, "queries"_a, "keys"_a, "values"_a, "decays"_a,
          "betas"_a.none(), "skips"_a.none(), "probes"_a.none(), "removals"_a.none(), "bases"_a, "additions"_a,
          "book"_a, "starts"_a, "sources"_a, "targets"_a, "delta"_a, "tiled"_a,
          "Linear attention with decay; raises IndexError for rows and states that do not exist.");
    m.def("selective_scan", &bind_selective_scan, "x"_a, "steps"_a, "rates"_a, "keys"_a, "queries"_a, "skips"_a,
          "states"_a, "starts"_a, "sources"_a, "targets"_a,
          "The recurrence of Mamba 1; raises IndexError for rows and states that do not exist.");
    m.def("ngram_rows", &bind_ngram_rows, "tokens"_a, "multipliers"_a, "sizes"_a, "offsets"_a, "boundary"_a,
          "states"_a, "starts"_a, "sources"_a, "targets"_a,
          "Rows of a table of n-grams; raises IndexError for rows, states and parts that do not exist.");
}

}  // namespace puna
