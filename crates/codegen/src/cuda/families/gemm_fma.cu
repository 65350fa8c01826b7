// A block's BM x BN tile of sums of products, by multiply-adds; each thread owns TM x TN of it, in runs of RUN
// columns that are spread over the tile, so that the threads of a warp read different banks. BK products at a time
// pass through shared memory, while the next ones are on their way to registers.

constexpr int THREADS = (BM / TM) * (BN / TN), ACROSS = BN / TN;
constexpr int RUN = TN % 4 == 0 ? 4 : TN, SIDE_BY_SIDE = 16 / sizeof(Elem);
static_assert(BM * BK % THREADS == 0 && BN * BK % THREADS == 0, "threads load equally much");
static_assert(THREADS % BM == 0 || BM % THREADS == 0, "threads stay in their line, or in some");
static_assert(THREADS % BN == 0 || BN % THREADS == 0, "threads stay in their line, or in some");

union Shared {
    struct { alignas(16) Elem a[BK][BM + BESIDE], b[BK][BN + BESIDE]; } in;
    alignas(16) Acc out[BM][BN + BESIDE];
};

// The share of a thread of LINES x BK elements, in contiguous runs.
template <int LINES, bool ALONG_K, bool VECTOR, class Operand> struct Loader {
    static constexpr int EACH = LINES * BK / THREADS;
    static constexpr int SIDE = VECTOR && EACH % SIDE_BY_SIDE == 0 && (ALONG_K ? BK : LINES) % SIDE_BY_SIDE == 0 ? SIDE_BY_SIDE : 1;
    static constexpr int LOADS = EACH / SIDE;
    static constexpr int KEPT = ALONG_K ? LOADS : LINES > THREADS * SIDE ? LINES / (THREADS * SIDE) : 1;
    typename Operand::Line kept[KEPT];
    Elem next[LOADS][SIDE];
    __device__ __forceinline__ static int line_of(int x) {
        const int e = (threadIdx.x + x * THREADS) * SIDE;
        return ALONG_K ? e / BK : e % LINES;
    }
    __device__ __forceinline__ static int k_of(int x) {
        const int e = (threadIdx.x + x * THREADS) * SIDE;
        return ALONG_K ? e % BK : e / LINES;
    }
    __device__ __forceinline__ Loader(const Operand& from, Index line0) {
#pragma unroll
        for (int x = 0; x < KEPT; x++) kept[x] = from.line(line0 + line_of(x));
    }
    __device__ __forceinline__ void load(const Operand& from, Index line0, Index k0, Index end) {
#pragma unroll
        for (int x = 0; x < LOADS; x++) {
            const Index k = k0 + k_of(x);
            const typename Operand::Line& line = kept[x % KEPT];
            if constexpr (SIDE == 1) {
                next[x][0] = k < end ? from.at(line, k) : Elem(0);
            } else {
                const Run run = from.run(line, k);
                const Index count = k < end && run.exists ? ALONG_K ? end - k : from.lines - line0 - line_of(x) : 0;
                kiln_vec<Elem, SIDE> all = {};
                if (count >= SIDE) all = kiln_load<SIDE>(run.p);
#pragma unroll
                for (int s = 0; s < SIDE; s++) {
                    if (count < SIDE && s < count) all.v[s] = run.p[s];
                    next[x][s] = all.v[s];
                }
            }
        }
    }
    template <int PITCH> __device__ __forceinline__ void store(Elem (&to)[BK][PITCH]) const {
#pragma unroll
        for (int x = 0; x < LOADS; x++)
#pragma unroll
            for (int s = 0; s < SIDE; s++) to[k_of(x) + (ALONG_K ? s : 0)][line_of(x) + (ALONG_K ? 0 : s)] = next[x][s];
    }
};

// Leaves the sums over first <= k < end in shared.out.
template <class A, class B>
__device__ __forceinline__ void multiply(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    const int ti = threadIdx.x / ACROSS * TM, tj = threadIdx.x % ACROSS * RUN;
    auto column = [&](int j) { return tj + j / RUN * (ACROSS * RUN) + j % RUN; };
    Loader<BM, A_ALONG_K, A_VECTOR, A> a_loader(a, i0);
    Loader<BN, B_ALONG_K, B_VECTOR, B> b_loader(b, j0);
    Acc sum[TM][TN] = {};
    // The first round only loads, so that loading is compiled once.
#pragma unroll 1 // and not taken apart
    for (Index k0 = first - BK; k0 < end; k0 += BK) {
        const bool loaded = k0 >= first;
        if (loaded) {
            a_loader.store(shared.in.a);
            b_loader.store(shared.in.b);
            __syncthreads();
        }
        a_loader.load(a, i0, k0 + BK, end);
        b_loader.load(b, j0, k0 + BK, end);
        if (!loaded) continue;
#pragma unroll 2 // more costs compile time and registers
        for (int k = 0; k < BK; k++) {
            Elem x[TM], y[TN];
#pragma unroll
            for (int i = 0; i < TM; i++) x[i] = shared.in.a[k][ti + i];
#pragma unroll
            for (int j = 0; j < TN; j++) y[j] = shared.in.b[k][column(j)];
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sum[i][j] = multiply_add(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j++) shared.out[ti + i][column(j)] = sum[i][j];
    __syncthreads();
}
