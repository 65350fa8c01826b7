// A block's BM x BN tile of sums of products, by tensor cores; each warp owns WM x WN of it. BK products
// at a time pass through one of two stages of shared memory, while the next ones are on their way to the
// other. An operand whose neighbours lie side by side, 16 bytes at an aligned address, is copied
// asynchronously; any other is read element by element.

constexpr int THREADS = (BM / WM) * (BN / WN) * 32;
constexpr int SIDE_BY_SIDE = 16 / sizeof(Elem);
static_assert(THREADS % BM == 0 && THREADS % BN == 0, "threads stay in their line");

// LINES x BK elements as they lie in memory: k next to k, or line next to line. Rows are padded, so that
// the parts of a matrix are read without bank conflicts.
template <int LINES, bool ALONG_K> struct Stage {
    static constexpr bool along_k = ALONG_K;
    static constexpr int PITCH = ALONG_K ? BK + SIDE_BY_SIDE : LINES + 8;
    Elem at[(ALONG_K ? LINES : BK) * PITCH];
    __device__ __forceinline__ Elem* place(int line, int k) { return at + (ALONG_K ? line * PITCH + k : k * PITCH + line); }
};

union Shared {
    struct { Stage<BM, A_ALONG_K> a; Stage<BN, B_ALONG_K> b; } in[2];
    Acc out[BM][BN + 1];
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies `count` elements and fills 16 bytes up with zeros.
__device__ __forceinline__ void copy16(Elem* to, const Elem* from, int count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(count * (int)sizeof(Elem)) : "memory");
}

__device__ __forceinline__ int within16(Index left) { return left <= 0 ? 0 : left < SIDE_BY_SIDE ? (int)left : SIDE_BY_SIDE; }

// Reads lines from `line0` on. A thread keeps to its line where lines lie side by side, else to its k.
template <int LINES, bool ALONG_K, bool VECTOR, class Operand> struct Reader {
    static constexpr int LOADS = LINES * BK / THREADS;
    static_assert(LINES * BK % THREADS == 0, "threads load equally much");
    typename Operand::Line kept;
    __device__ __forceinline__ Reader(const Operand& from, Index line0) : kept(from.line(line0 + threadIdx.x % LINES)) {}
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
#pragma unroll 4 // as many reads are on their way
        for (int x = 0; x < LOADS; x++) {
            const int e = threadIdx.x + x * THREADS;
            const int line = ALONG_K ? e / BK : e % LINES, k = ALONG_K ? e % BK : e / LINES;
            Elem element = 0;
            if (k0 + k < end) {
                if constexpr (ALONG_K) element = from.at(from.line(line0 + line), k0 + k);
                else element = from.at(kept, k0 + k);
            }
            *to.place(line, k) = element;
        }
    }
};
template <int LINES, bool ALONG_K, class Operand> struct Reader<LINES, ALONG_K, true, Operand> {
    static constexpr int LOADS = LINES * BK / SIDE_BY_SIDE / THREADS, KEPT = ALONG_K ? LOADS : 1;
    static_assert(LINES * BK / SIDE_BY_SIDE % THREADS == 0, "threads load equally much");
    typename Operand::Line kept[KEPT];
    __device__ __forceinline__ static int line_of(int x) {
        const int e = (threadIdx.x + x * THREADS) * SIDE_BY_SIDE;
        return ALONG_K ? e / BK : e % LINES;
    }
    __device__ __forceinline__ Reader(const Operand& from, Index line0) {
#pragma unroll
        for (int x = 0; x < KEPT; x++) kept[x] = from.line(line0 + line_of(x));
    }
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
#pragma unroll
        for (int x = 0; x < LOADS; x++) {
            const int e = (threadIdx.x + x * THREADS) * SIDE_BY_SIDE;
            const int line = line_of(x), k = ALONG_K ? e % BK : e / LINES;
            const Index at = k0 + k;
            const Elem* p = at < end ? from.run(kept[ALONG_K ? x : 0], at) : nullptr;
            const int count = p ? within16(ALONG_K ? end - at : from.lines - line0 - line) : 0;
            copy16(to.place(line, k), p ? p : from.p, count);
        }
    }
};
