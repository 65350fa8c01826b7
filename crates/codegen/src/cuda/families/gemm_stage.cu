// A block's BM x BN tile of sums of products, by tensor cores; each warp owns WM x WN of it. BK products
// at a time pass through one of STAGES stages of shared memory, while the next ones are on their way to the
// others. An operand whose neighbours are contiguous, 16 bytes at an aligned address, is copied
// asynchronously; any other is read element by element.

constexpr int THREADS = (BM / WM) * (BN / WN) * 32;
constexpr int SIDE_BY_SIDE = 16 / sizeof(Elem);
static_assert(THREADS % BM == 0 || BM % THREADS == 0, "threads stay in their line, or in some");
static_assert(THREADS % BN == 0 || BN % THREADS == 0, "threads stay in their line, or in some");

// LINES x BK elements as they lie in memory: k next to k, or line next to line. The chunks of 16 bytes of a row are
// permuted, so that the parts of a matrix are read without bank conflicts: 8 rows of a chunk of halves, or, of f32,
// 4 elements in each of 8 lines. Bytes lie next to each other along k always: matrices of them are read so.
template <int LINES, bool ALONG_K> struct Stage {
    static constexpr bool along_k = ALONG_K || sizeof(Elem) == 1;
    static constexpr int ROW = along_k ? BK : LINES, CHUNKS = ROW / SIDE_BY_SIDE;
    static constexpr int EACH = CHUNKS < 8 ? 8 / CHUNKS : 1, MASK = CHUNKS < 8 ? CHUNKS - 1 : 7;
    static constexpr int STEP = sizeof(Elem) == 4 && !along_k ? 2 : 1;
    alignas(16) Elem at[LINES * BK];
    __device__ __forceinline__ static int offset(int line, int k) {
        const int row = along_k ? line : k, column = along_k ? k : line;
        const int chunk = column / SIDE_BY_SIDE ^ (row / EACH * STEP & MASK);
        return row * ROW + chunk * SIDE_BY_SIDE + column % SIDE_BY_SIDE;
    }
    __device__ __forceinline__ Elem* place(int line, int k) { return at + offset(line, k); }
};

union Shared {
    struct { Stage<BM, A_ALONG_K> a; Stage<BN, B_ALONG_K> b; } in[STAGES];
    alignas(16) Acc out[BM][BN + BESIDE];
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies some bytes and fills up with zeros; without any, the address is not used.
__device__ __forceinline__ void copy16(Elem* to, const Elem* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

// The bytes of as many elements as are left, of 16: all or none of them where there are whole ones.
template <bool WHOLE> __device__ __forceinline__ int within16(Index left) {
    return left <= 0 ? 0 : WHOLE || left >= SIDE_BY_SIDE ? 16 : (int)left * (int)sizeof(Elem);
}

// Reads lines from `line0` on. A thread keeps to its lines, and where these are contiguous k moves from read to read.
template <int LINES, bool ALONG_K, bool VECTOR, bool WHOLE, class Operand> struct Reader {
    static constexpr int LOADS = LINES * BK / THREADS;
    // The lines of a thread, which come in turn.
    static constexpr int KEPT = ALONG_K ? 1 : LINES > THREADS ? LINES / THREADS : 1;
    static_assert(LINES * BK % THREADS == 0, "threads load equally much");
    typename Operand::Line kept[KEPT];
    __device__ __forceinline__ Reader(const Operand& from, Index line0) {
#pragma unroll
        for (int x = 0; x < KEPT; x++) kept[x] = from.line(line0 + (threadIdx.x + x * THREADS) % LINES);
    }
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
#pragma unroll 4 // as many reads are on their way
        for (int turn = 0; turn < LOADS; turn += KEPT)
#pragma unroll
            for (int x = 0; x < KEPT; x++) {
                const int e = threadIdx.x + (turn + x) * THREADS;
                const int line = ALONG_K ? e / BK : e % LINES, k = ALONG_K ? e % BK : e / LINES;
                Elem element = 0;
                if (k0 + k < end) {
                    if constexpr (ALONG_K) element = from.at(from.line(line0 + line), k0 + k);
                    else element = from.at(kept[x], k0 + k);
                }
                *to.place(line, k) = element;
            }
    }
};
template <int LINES, bool ALONG_K, bool WHOLE, class Operand> struct Reader<LINES, ALONG_K, true, WHOLE, Operand> {
    static constexpr int LOADS = LINES * BK / SIDE_BY_SIDE / THREADS, KEPT = ALONG_K ? LOADS : 1;
    static_assert(LINES * BK / SIDE_BY_SIDE % THREADS == 0, "threads load equally much");
    static_assert(THREADS * SIDE_BY_SIDE % (ALONG_K ? BK : LINES) == 0, "threads keep to their k, or to their line");
    typename Operand::Line kept[KEPT];
    // The number of existing bytes of 16, where lines are contiguous.
    int bytes;
    __device__ __forceinline__ static int line_of(int x) {
        const int e = (threadIdx.x + x * THREADS) * SIDE_BY_SIDE;
        return ALONG_K ? e / BK : e % LINES;
    }
    __device__ __forceinline__ Reader(const Operand& from, Index line0) : bytes(within16<WHOLE>(from.lines - line0 - line_of(0))) {
#pragma unroll
        for (int x = 0; x < KEPT; x++) kept[x] = from.line(line0 + line_of(x));
    }
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
#pragma unroll
        for (int x = 0; x < LOADS; x++) {
            const int e = (threadIdx.x + x * THREADS) * SIDE_BY_SIDE;
            const int k = ALONG_K ? e % BK : e / LINES;
            const Index at = k0 + k;
            const Run run = from.run(kept[ALONG_K ? x : 0], at);
            const int some = ALONG_K ? within16<WHOLE>(end - at) : at < end ? bytes : 0;
            copy16(to.place(line_of(x), k), run.p, run.exists ? some : 0);
        }
    }
};
