// A block's BM x BN tile of sums of products of f16 or bf16, by tensor cores; each warp owns WM x WN of
// it. BK products at a time pass through one of two stages of shared memory, while the next ones are
// on their way to the other. An operand whose neighbours lie side by side, eight at an aligned address,
// is copied asynchronously; any other is read element by element.

constexpr int THREADS = (BM / WM) * (BN / WN) * 32;
static_assert(THREADS % BM == 0 && THREADS % BN == 0, "threads stay in their line");

// LINES x BK elements as they lie in memory: k next to k, or line next to line. Rows are padded, so that
// ldmatrix reads eight of them without a bank conflict.
template <int LINES, bool ALONG_K> struct Stage {
    static constexpr bool along_k = ALONG_K;
    static constexpr int PITCH = (ALONG_K ? BK : LINES) + 8;
    Elem at[(ALONG_K ? LINES : BK) * PITCH];
    __device__ __forceinline__ Elem* place(int line, int k) { return at + (ALONG_K ? line * PITCH + k : k * PITCH + line); }
};

union Shared {
    struct { Stage<BM, A_ALONG_K> a; Stage<BN, B_ALONG_K> b; } in[2];
    Acc out[BM][BN + 1];
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// Copies `count` elements and fills up to eight with zeros.
__device__ __forceinline__ void copy8(Elem* to, const Elem* from, int count) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(count * 2) : "memory");
}

__device__ __forceinline__ int within8(Index left) { return left <= 0 ? 0 : left < 8 ? (int)left : 8; }

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
    static constexpr int LOADS = LINES * BK / 8 / THREADS;
    static_assert(LINES * BK / 8 % THREADS == 0, "threads load equally much");
    __device__ __forceinline__ Reader(const Operand&, Index) {}
    __device__ __forceinline__ void read(Stage<LINES, ALONG_K>& to, const Operand& from, Index line0, Index k0, Index end) const {
#pragma unroll
        for (int x = 0; x < LOADS; x++) {
            const int e = (threadIdx.x + x * THREADS) * 8;
            const int line = ALONG_K ? e / BK : e % LINES, k = ALONG_K ? e % BK : e / LINES;
            const Index i = line0 + line, at = k0 + k;
            const int count = ALONG_K ? (i < from.lines ? within8(end - at) : 0) : (at < end ? within8(from.lines - i) : 0);
            copy8(to.place(line, k), count ? from.p + i * from.line_stride + at * from.k_stride : from.p, count);
        }
    }
};

__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const Elem* p, bool transposed) {
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the products along BK to a warp's WM x 8 N sums, whose corner is (wi, wj).
template <int N, class A, class B>
__device__ __forceinline__ void add_products(float (&sum)[WM / 16][N][4], A& a, B& b, int wi, int wj) {
    const int part = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        unsigned x[WM / 16][4], y[N / 2][4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
            load_matrices(x[i], a.place(wi + i * 16 + part % 2 * 8 + (A::along_k ? row : 0), k + part / 2 * 8 + (A::along_k ? 0 : row)), !A::along_k);
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            load_matrices(y[j], b.place(wj + j * 16 + part / 2 * 8 + (B::along_k ? row : 0), k + part % 2 * 8 + (B::along_k ? 0 : row)), !B::along_k);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < N; j++) mma(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}

// Leaves the sums over first <= k < end in shared.out.
template <class A, class B>
__device__ __forceinline__ void multiply(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wi = warp / (BN / WN) * WM, wj = warp % (BN / WN) * WN;
    const Reader<BM, A_ALONG_K, A_VECTOR, A> a_reader(a, i0);
    const Reader<BN, B_ALONG_K, B_VECTOR, B> b_reader(b, j0);
    auto read = [&](int stage, Index k0) {
        if (k0 < end) {
            a_reader.read(shared.in[stage].a, a, i0, k0, end);
            b_reader.read(shared.in[stage].b, b, j0, k0, end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    float sum[WM / 16][WN / 8][4] = {};
    int stage = 0;
    // The first round only reads, so that reading is compiled once.
#pragma unroll 1 // and not taken apart
    for (Index k0 = first - BK; k0 < end; k0 += BK, stage ^= 1) {
        read(stage ^ 1, k0 + BK);
        if (k0 < first) continue;
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        add_products(sum, shared.in[stage].a, shared.in[stage].b, wi, wj);
        __syncthreads();
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int x = 0; x < 4; x++)
                shared.out[wi + i * 16 + lane / 4 + x / 2 * 8][wj + j * 8 + lane % 4 * 2 + x % 2] = sum[i][j][x];
    __syncthreads();
}
