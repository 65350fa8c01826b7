// A block's BM x BN tile, by a pipeline of STAGES stages of BK terms in shared memory. Operands in memory are copied
// asynchronously, by 16 bytes if contiguous and aligned, else by elements of 4 bytes or more. Threads load other
// elements.

constexpr int SIDE_BY_SIDE = 16 / sizeof(Elem);
static_assert(THREADS % BM == 0 || BM % THREADS == 0, "threads stay in their line, or in some");
static_assert(THREADS % BN == 0 || BN % THREADS == 0, "threads stay in their line, or in some");

// LINES x BK elements, contiguous along k or along lines as in memory; bytes always along k. The 16-byte chunks of a row
// are permuted, so that warps read matrices without bank conflicts: 8 rows of a chunk, or 4 elements of f32 in each of 8
// lines.
template <int LINES, bool ALONG_K> struct Stage {
    static constexpr bool along_k = ALONG_K || sizeof(Elem) == 1;
    static constexpr int ROW = along_k ? BK : LINES, CHUNKS = ROW / SIDE_BY_SIDE;
    static constexpr int EACH = CHUNKS < 8 ? 8 / CHUNKS : 1, MASK = CHUNKS < 8 ? CHUNKS - 1 : 7;
    static constexpr int STEP = along_k || sizeof(Elem) < 4 ? 1 : BY_WARPS ? 2 : 0;
    alignas(16) Elem at[LINES * BK];
    __device__ __forceinline__ static int offset(int line, int k) {
        const int row = along_k ? line : k, column = along_k ? k : line;
        const int chunk = column / SIDE_BY_SIDE ^ (row / EACH * STEP & MASK);
        return row * ROW + chunk * SIDE_BY_SIDE + column % SIDE_BY_SIDE;
    }
    __device__ __forceinline__ Elem* place(int line, int k) { return at + offset(line, k); }
};

struct Stages {
    Stage<BM, A_ALONG_K> a;
    Stage<BN, B_ALONG_K> b;
};

union Shared {
    Stages in[STAGES];
    alignas(16) Acc out[BM][BN + BESIDE];
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies `bytes` of SIZE bytes, and fills up with zeros. If it is 0, the address is not read.
template <int SIZE> __device__ __forceinline__ void copy(unsigned to, const Elem* from, int bytes) {
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes), "n"(SIZE) : "memory");
}

// Hides an induction variable from the compiler, which would keep the address of each load in registers.
__device__ __forceinline__ int opaque(int x) { asm("" : "+r"(x)); return x; }
__device__ __forceinline__ long long opaque(long long x) { asm("" : "+l"(x)); return x; }

// The bytes of at most 16 that `left` elements have. With WHOLE, it is 16 or 0.
template <bool WHOLE> __device__ __forceinline__ int within16(Index left) {
    return left <= 0 ? 0 : WHOLE || left >= SIDE_BY_SIDE ? 16 : (int)left * (int)sizeof(Elem);
}

// Loads lines from `line0` on. A thread loads elements of the same lines in each stage.
template <int LINES, bool ALONG_K, bool VECTOR, bool WHOLE, class Operand> struct Reader {
    static constexpr int LOADS = LINES * BK < THREADS ? 1 : LINES * BK / THREADS;
    // The number of lines whose addresses a thread keeps in registers.
    static constexpr int KEPT = !ALONG_K ? LINES > THREADS ? LINES / THREADS : 1 : BY_WARPS || LOADS > 8 ? 1 : LOADS;
    typename Operand::Line kept[KEPT];
    __device__ __forceinline__ static int line_of(int x) {
        const int e = threadIdx.x + x * THREADS;
        return ALONG_K ? e / BK : e % LINES;
    }
    __device__ __forceinline__ Reader(const Operand& from, Index line0) {
#pragma unroll
        for (int x = 0; x < KEPT; x++) kept[x] = from.line(line0 + line_of(x));
    }
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
        if (LINES * BK < THREADS && threadIdx.x >= LINES * BK) return;
#pragma unroll 4 // loads in flight
        for (int x0 = 0; x0 < LOADS; x0 += KEPT)
#pragma unroll
            for (int x = 0; x < KEPT; x++) {
                const int e = threadIdx.x + (x0 + x) * THREADS;
                const int line = line_of(x0 + x), k = ALONG_K ? e % BK : e / LINES;
                const auto l = ALONG_K && KEPT < LOADS ? from.line(line0 + line) : kept[x];
                if constexpr (Operand::in_memory && sizeof(Elem) >= 4) {
                    const Run run = from.run(l, k0 + k);
                    copy<sizeof(Elem)>(shared_address(to.place(line, k)), run.p, k0 + k < end && run.exists ? sizeof(Elem) : 0);
                } else {
                    *to.place(line, k) = k0 + k < end ? from.at(l, k0 + k) : Elem(0);
                }
            }
    }
};
template <int LINES, bool ALONG_K, bool WHOLE, class Operand> struct Reader<LINES, ALONG_K, true, WHOLE, Operand> {
    static constexpr int PIECES = LINES * BK / SIDE_BY_SIDE;
    static constexpr int LOADS = PIECES < THREADS ? 1 : PIECES / THREADS, KEPT = ALONG_K ? LOADS : 1;
    static_assert(THREADS * SIDE_BY_SIDE % (ALONG_K ? BK : LINES) == 0, "threads keep to their k, or to their line");
    typename Operand::Line kept[KEPT];
    // The number of bytes of 16 inside the operand, if lines are contiguous.
    int bytes;
    __device__ __forceinline__ static int line_of(int x) {
        const int e = (threadIdx.x + x * THREADS) * SIDE_BY_SIDE;
        return ALONG_K ? e / BK : e % LINES;
    }
    __device__ __forceinline__ static int k_of(int x) {
        const int e = (threadIdx.x + x * THREADS) * SIDE_BY_SIDE;
        return ALONG_K ? e % BK : e / LINES;
    }
    __device__ __forceinline__ Reader(const Operand& from, Index line0) : bytes(within16<WHOLE>(from.lines - line0 - line_of(0))) {
#pragma unroll
        for (int x = 0; x < KEPT; x++) kept[x] = from.line(line0 + line_of(x));
    }
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
        if (PIECES < THREADS && threadIdx.x >= PIECES) return;
        constexpr int ROWS = THREADS * SIDE_BY_SIDE / Stage<LINES, ALONG_K>::ROW;
        unsigned first = shared_address(to.place(line_of(0), k_of(0)));
        asm("" : "+r"(first)); // so that what follows is an offset in the instruction
        const Index at = opaque(k0 + k_of(0));
#pragma unroll
        for (int x = 0; x < LOADS; x++) {
            const int behind = ALONG_K ? 0 : x * (THREADS * SIDE_BY_SIDE / LINES);
            const Run run = from.run(kept[ALONG_K ? x : 0], at, behind);
            const int some = ALONG_K ? within16<WHOLE>(end - at) : behind < end - at ? bytes : 0;
            const bool exists = !ALONG_K && !Operand::bounded || run.exists; // as `bytes` says
            // Chunks are permuted alike in every 8 rows.
            const unsigned place = ROWS % 8 == 0 ? first + x * THREADS * 16 : shared_address(to.place(line_of(x), k_of(x)));
            copy<16>(place, run.p, exists ? some : 0);
        }
    }
};

// Copies the stages of the terms first <= k < end and calls `add` with each of them, once it has arrived.
template <class A, class B, class Add>
__device__ __forceinline__ void each_stage(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end, const Add& add) {
    const Reader<BM, A_ALONG_K, A_VECTOR, A_WHOLE, A> a_reader(a, i0);
    const Reader<BN, B_ALONG_K, B_VECTOR, B_WHOLE, B> b_reader(b, j0);
    int stage = 0;
    // The first iterations only load, so that loads are compiled once. After the barrier, all threads have multiplied the
    // stage that is loaded next.
#pragma unroll 1
    for (Index k0 = first - (STAGES - 1) * BK; k0 < end; k0 += BK) {
        if (k0 >= first) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncthreads();
        }
        const Index next = k0 + (STAGES - 1) * BK;
        if (next < end) {
            a_reader.read(shared.in[stage].a, a, i0, next, end);
            b_reader.read(shared.in[stage].b, b, j0, next, end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (k0 >= first) add(shared.in[stage]);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
}
