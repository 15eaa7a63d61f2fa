// Measures the limits of this machine: reading memory, multiplying and adding. Compiled by roofline.py for the
// processor it runs on. Every result is the best of several attempts, because load can only lower an upper bound.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <initializer_list>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
typedef uint64_t Line __attribute__((vector_size(64)));

// Seconds that `threads` threads take for body(thread), from the common start to the last end.
template <class Body>
double seconds(int threads, Body body) {
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; i++) {
        workers.emplace_back([&, i] {
            ready.fetch_add(1);
            while (!go.load()) std::this_thread::yield();
            body(i);
        });
    }
    while (ready.load() < threads) std::this_thread::yield();
    const auto begin = Clock::now();
    go.store(true);
    for (std::thread& worker : workers) worker.join();
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reads `lines` cache lines as `streams` interleaved streams, prefetching `ahead` lines ahead (0: leave that to the
// processor). The number of streams matters: a prefetcher only follows a few, but too few do not saturate memory.
template <int streams>
uint64_t read(const Line* from, size_t lines, size_t ahead) {
    const size_t length = lines / streams;
    Line sums[streams] = {};
    for (size_t i = 0; i < length; i++) {
        for (int s = 0; s < streams; s++) {
            const Line* at = from + s * length + i;
            if (ahead) __builtin_prefetch(at + ahead, 0, 3);
            sums[s] ^= *at;
        }
    }
    uint64_t all = 0;
    for (int s = 0; s < streams; s++) {
        for (int i = 0; i < 8; i++) all ^= sums[s][i];
    }
    return all;
}

// Writes past the caches, if the processor can: a line that is written into them is read first.
void copy(const Line* from, Line* to, size_t lines, size_t ahead) {
    for (size_t i = 0; i < lines; i++) {
        if (ahead) __builtin_prefetch(from + i + ahead, 0, 3);
#if defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), reinterpret_cast<const __m512i&>(from[i]));
#elif defined(__AVX__)
        for (int half = 0; half < 2; half++) {
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i) + half,
                                _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i) + half));
        }
#else
        to[i] = from[i];
#endif
    }
}

std::atomic<uint64_t> sink;   // keeps results from being optimised away

template <class T>
void keep(const T& value) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof bytes);
    sink.fetch_xor(bytes[0]);
}

// Processor time of the calling thread in seconds, which unlike wall-clock time excludes other programs.
double own_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Multiply-adds per second of all `threads` threads; body(rounds) returns how many it performed.
template <class Body>
double rate(int threads, Body body) {
    double best = 0;
    for (int attempt = 0; attempt < 10; attempt++) {
        std::vector<double> rates(static_cast<size_t>(threads));
        seconds(threads, [&](int i) {
            const double begin = own_seconds();
            const auto done = static_cast<double>(body(int64_t{1} << 20));
            rates[static_cast<size_t>(i)] = done / (own_seconds() - begin);
        });
        double together = 0;
        for (const double each : rates) together += each;
        best = std::max(best, together);
    }
    return best;
}

// Hides the contents of a register, so that equal steps of a loop are not folded into one.
template <class T>
inline void pin(T& value) {
#if defined(__x86_64__)
    __asm__ volatile("" : "+v"(value));
#else
    __asm__ volatile("" : "+w"(value));
#endif
}

// Computes sum = step(sum, operand) in independent chains, more than latency times instructions per cycle. A step is
// one multiply-add per value of the operand, each of `size` bytes. Returns the total number of multiply-adds.
template <int size, class Sum, class Operand, class Step>
int64_t chained(int64_t rounds, Sum zero, Operand operand, Step step) {
    constexpr int chains = 12;
    Sum sums[chains];
    for (Sum& sum : sums) sum = zero;
    for (int64_t i = 0; i < rounds; i++) {
        pin(operand);
#pragma GCC unroll 12
        for (Sum& sum : sums) sum = step(sum, operand);
    }
    Sum all = sums[0];
    for (int i = 1; i < chains; i++) all += sums[i];
    keep(all);
    return rounds * chains * static_cast<int64_t>(sizeof(Operand)) / size;
}

int64_t floats(int64_t rounds) {
#if defined(__AVX512F__)
    return chained<4>(rounds, _mm512_setzero_ps(), _mm512_set1_ps(1e-9f),
                      [](__m512 sum, __m512 a) { return _mm512_fmadd_ps(a, a, sum); });
#elif defined(__FMA__)
    return chained<4>(rounds, _mm256_setzero_ps(), _mm256_set1_ps(1e-9f),
                      [](__m256 sum, __m256 a) { return _mm256_fmadd_ps(a, a, sum); });
#elif defined(__aarch64__)
    return chained<4>(rounds, vdupq_n_f32(0), vdupq_n_f32(1e-9f),
                      [](float32x4_t sum, float32x4_t a) { return vfmaq_f32(sum, a, a); });
#else
    (void)rounds;
    return 0;
#endif
}

int64_t bytes(int64_t rounds) {
#if defined(__AVX512VNNI__)
    return chained<1>(rounds, _mm512_setzero_si512(), _mm512_set1_epi8(1),
                      [](__m512i sum, __m512i a) { return _mm512_dpbusd_epi32(sum, a, a); });
#elif defined(__AVXVNNI__)
    return chained<1>(rounds, _mm256_setzero_si256(), _mm256_set1_epi8(1),
                      [](__m256i sum, __m256i a) { return _mm256_dpbusd_avx_epi32(sum, a, a); });
#elif defined(__AVX2__)
    // Without VNNI: products in pairs to 16 bits, and a 16-bit sum.
    return chained<1>(rounds, _mm256_setzero_si256(), _mm256_set1_epi8(1), [](__m256i sum, __m256i& a) {
        pin(a);   // otherwise the product would be computed once for all sums
        return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, a));
    });
#elif defined(__ARM_FEATURE_DOTPROD)
    return chained<1>(rounds, vdupq_n_s32(0), vdupq_n_s8(1),
                      [](int32x4_t sum, int8x16_t a) { return vdotq_s32(sum, a, a); });
#else
    (void)rounds;
    return 0;
#endif
}

#if defined(__AMX_INT8__) && defined(SYS_arch_prctl)
int64_t tiles(int64_t rounds) {
    alignas(64) unsigned char layout[64] = {1};   // palette 1: eight tiles of 16 rows of 64 bytes
    for (int tile = 0; tile < 8; tile++) layout[16 + 2 * tile] = 64, layout[48 + tile] = 16;
    // Inline assembly with all 64 bytes as the operand: GCC 12's intrinsic only declares eight of them, so the
    // optimiser removes the stores of the others.
    __asm__ volatile("ldtilecfg %0" : : "m"(layout));
    _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    _tile_zero(4); _tile_zero(5); _tile_zero(6); _tile_zero(7);
    for (int64_t i = 0; i < rounds / 16; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return rounds / 16 * 4 * 16 * 16 * 64;
}
#endif

// Memory with a part for each thread, in huge pages if available.
class Parts {
public:
    Parts(int threads, size_t size) : threads_(threads), part_(size / static_cast<size_t>(threads) & ~(huge - 1)) {
        void* memory = mmap(nullptr, all(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;
        memory_ = memory;
        madvise(memory_, all(), MADV_HUGEPAGE);
        seconds(threads_, [&](int i) { std::memset(part(i), i + 1, part_); });
    }
    ~Parts() {
        if (memory_) munmap(memory_, all());
    }
    Parts(const Parts&) = delete;
    Parts& operator=(const Parts&) = delete;

    // Bytes per second if each thread calls body(its part, lines, streams, lines to prefetch ahead), with the best of
    // these numbers of streams; 0 if there is no memory.
    template <class Body>
    double bandwidth(int passes, std::initializer_list<int> all_streams, Body body) const {
        double best = 0;
        if (!memory_) return best;
        for (int pass = 0; pass < passes; pass++) {
            for (const int streams : all_streams) {
                for (const size_t ahead : {size_t{0}, size_t{16}, size_t{64}}) {
                    const double took = seconds(threads_, [&](int i) {
                        body(reinterpret_cast<Line*>(part(i)), part_ / sizeof(Line), streams, ahead);
                    });
                    best = std::max(best, static_cast<double>(part_) * threads_ / took);
                }
            }
        }
        return best;
    }

private:
    static constexpr size_t huge = size_t{2} << 20;

    size_t all() const { return part_ * static_cast<size_t>(threads_) + huge; }
    unsigned char* part(int i) const {
        const auto first = (reinterpret_cast<uintptr_t>(memory_) + huge - 1) & ~(uintptr_t{huge} - 1);
        return reinterpret_cast<unsigned char*>(first) + static_cast<size_t>(i) * part_;
    }

    int threads_;
    size_t part_;
    void* memory_ = nullptr;
};

}  // namespace

extern "C" {

// Bytes per second that `threads` threads read from `size` bytes, which exceed the caches. Best of several access
// patterns, because no single one suits every processor.
double read_bandwidth(int threads, size_t size, int passes) {
    const Parts parts(threads, size);
    // A pass reads everything once, as decoding does.
    return parts.bandwidth(passes, {1, 2, 4, 8}, [&](Line* from, size_t lines, int streams, size_t ahead) {
        uint64_t found = 0;
        if (streams == 1) found = read<1>(from, lines, ahead);
        if (streams == 2) found = read<2>(from, lines, ahead);
        if (streams == 4) found = read<4>(from, lines, ahead);
        if (streams == 8) found = read<8>(from, lines, ahead);
        sink.fetch_xor(found);
    });
}

// The same, of reading one half and writing the other.
double copy_bandwidth(int threads, size_t size, int passes) {
    const Parts parts(threads, size);
    return parts.bandwidth(passes, {1}, [&](Line* from, size_t lines, int, size_t ahead) {
        copy(from, from + lines / 2, lines / 2, ahead);
    });
}

// Multiply-adds per second: float32, 8-bit integers in vectors, 8-bit integers in AMX tiles; 0: cannot.
double float_peak(int threads) { return rate(threads, floats); }
double byte_peak(int threads) { return rate(threads, bytes); }
double tile_peak(int threads) {
#if defined(__AMX_INT8__) && defined(SYS_arch_prctl)
    constexpr int request_permission = 0x1023, tile_data = 18;   // the system only provides tile memory on request
    if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0) return 0;
    return rate(threads, tiles);
#else
    (void)threads;
    return 0;
#endif
}

}  // extern "C"
