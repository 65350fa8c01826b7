// A block's BM x BN tile of sums of products, by multiply-adds; each thread owns TM x TN of it.
// BK products at a time pass through shared memory, while the next ones are on their way to registers.

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int A_LOADS = BM * BK / THREADS, A_LINES = A_ALONG_K ? A_LOADS : 1;
constexpr int B_LOADS = BN * BK / THREADS, B_LINES = B_ALONG_K ? B_LOADS : 1;
static_assert(BM * BK % THREADS == 0 && BN * BK % THREADS == 0, "threads load equally much");
static_assert(THREADS % BM == 0 && THREADS % BN == 0 && THREADS % BK == 0, "threads stay in their line");

union Shared {
    struct { Elem a[BK][BM + 4], b[BK][BN + 4]; } in;
    Acc out[BM][BN + 1];
};

// The place of a thread's x-th element in a tile of LINES x BK.
template <int LINES, bool ALONG_K> __device__ __forceinline__ int line_of(int x) {
    const int e = threadIdx.x + x * THREADS;
    return ALONG_K ? e / BK : e % LINES;
}
template <int LINES, bool ALONG_K> __device__ __forceinline__ int k_of(int x) {
    const int e = threadIdx.x + x * THREADS;
    return ALONG_K ? e % BK : e / LINES;
}

// Leaves the sums over first <= k < end in shared.out.
template <class A, class B>
__device__ __forceinline__ void multiply(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    const int ti = threadIdx.x / (BN / TN) * TM, tj = threadIdx.x % (BN / TN) * TN;
    typename A::Line a_line[A_LINES];
    typename B::Line b_line[B_LINES];
    Elem a_next[A_LOADS], b_next[B_LOADS];
#pragma unroll
    for (int x = 0; x < A_LINES; x++) a_line[x] = a.line(i0 + line_of<BM, A_ALONG_K>(x));
#pragma unroll
    for (int x = 0; x < B_LINES; x++) b_line[x] = b.line(j0 + line_of<BN, B_ALONG_K>(x));
    auto load = [&](Index k0) {
#pragma unroll
        for (int x = 0; x < A_LOADS; x++) {
            const Index k = k0 + k_of<BM, A_ALONG_K>(x);
            a_next[x] = k < end ? a.at(a_line[A_ALONG_K ? x : 0], k) : Elem(0);
        }
#pragma unroll
        for (int x = 0; x < B_LOADS; x++) {
            const Index k = k0 + k_of<BN, B_ALONG_K>(x);
            b_next[x] = k < end ? b.at(b_line[B_ALONG_K ? x : 0], k) : Elem(0);
        }
    };
    Acc sum[TM][TN] = {};
    // The first round only loads, so that loading is compiled once.
#pragma unroll 1 // and not taken apart
    for (Index k0 = first - BK; k0 < end; k0 += BK) {
        const bool loaded = k0 >= first;
        if (loaded) {
#pragma unroll
            for (int x = 0; x < A_LOADS; x++) shared.in.a[k_of<BM, A_ALONG_K>(x)][line_of<BM, A_ALONG_K>(x)] = a_next[x];
#pragma unroll
            for (int x = 0; x < B_LOADS; x++) shared.in.b[k_of<BN, B_ALONG_K>(x)][line_of<BN, B_ALONG_K>(x)] = b_next[x];
            __syncthreads();
        }
        load(k0 + BK);
        if (!loaded) continue;
#pragma unroll 2 // more costs compile time and registers
        for (int k = 0; k < BK; k++) {
            Elem x[TM], y[TN];
#pragma unroll
            for (int i = 0; i < TM; i++) x[i] = shared.in.a[k][ti + i];
#pragma unroll
            for (int j = 0; j < TN; j++) y[j] = shared.in.b[k][tj + j];
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
        for (int j = 0; j < TN; j++) shared.out[ti + i][tj + j] = sum[i][j];
    __syncthreads();
}
