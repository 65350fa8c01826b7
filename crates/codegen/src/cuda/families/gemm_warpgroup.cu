// A block's BM x BN tiles of sums of products, by wgmma. A thread of the first warpgroup copies boxes of both
// operands to one of STAGES stages of shared memory, ahead of the others by as many stages as there are. Each other
// warpgroup multiplies what has arrived, and keeps WM x BN sums of a tile in registers. A stage's `full` counts the
// bytes that arrive, its `empty` the warps that have multiplied.

constexpr int WARPS = BM / WM * 4, THREADS = 128 + 32 * WARPS;
constexpr int SPAN = 128 / sizeof(Elem), COLUMNS = 64;
constexpr int SUMS = WM / 64 * BN / 2;
static_assert(BK == SPAN, "a stage is a row of a box long");

// 16 rows and COLUMNS columns of a warp's sums, on their way from the threads that have them to those that store
// neighbours. Chunks of 16 bytes are permuted, so that neither meet in a bank.
struct Passage {
    alignas(16) float sums[16 * COLUMNS];
    __device__ __forceinline__ float* place(int row, int column) {
        const int chunk = column / 4;
        return sums + row * COLUMNS + (chunk ^ row % 4 * 2 ^ chunk >> 3) * 4 + column % 4;
    }
    template <int WIDTH> __device__ __forceinline__ kiln_vec<float, WIDTH> load(int row, int column) {
        constexpr int SOME = WIDTH < 4 ? WIDTH : 4;
        kiln_vec<float, WIDTH> all;
#pragma unroll
        for (int x = 0; x < WIDTH; x += SOME) {
            const auto some = kiln_load<SOME>(place(row, column + x));
#pragma unroll
            for (int y = 0; y < SOME; y++) all.v[x + y] = some.v[y];
        }
        return all;
    }
};

struct alignas(1024) Shared {
    struct { Elem a[BM * BK], b[BN * BK]; } in[STAGES];
    Passage passages[WARPS];
    unsigned long long full[STAGES], empty[STAGES];
};

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// The stage that comes next, and the parity of the phase of its barriers.
struct Ring {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        parity ^= stage == 0;
    }
};

__device__ __forceinline__ void wait(const unsigned long long& barrier, unsigned parity) {
    unsigned done;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                    : "=r"(done) : "r"(shared_address(&barrier)), "r"(parity) : "memory");
    while (!done);
}

__device__ __forceinline__ void begin(Shared& shared) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(shared.full + i)) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(shared.empty + i)), "n"(WARPS) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
}

// Where lines are contiguous, a box has SPAN of them.
template <int LINES, bool ALONG_K, class Copy>
__device__ __forceinline__ void copy_lines(const Elem* to, unsigned full, const Copy& copy, int line, int k) {
#pragma unroll
    for (int x = 0; x < LINES; x += ALONG_K ? LINES : SPAN) copy(shared_address(to + x * BK), full, line + x, k);
}

// Copies the terms k0 to k0 + BK of a tile to the next stage, once it is empty. What lies outside is 0.
template <class CopyA, class CopyB>
__device__ __forceinline__ void copy_stage(Shared& shared, Ring& ring, const CopyA& copy_a, const CopyB& copy_b, int i0, int j0, int k0) {
    wait(shared.empty[ring.stage], ring.parity ^ 1);
    const unsigned full = shared_address(&shared.full[ring.stage]);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "n"(sizeof(*shared.in)) : "memory");
    copy_lines<BM, A_ALONG_K>(shared.in[ring.stage].a, full, copy_a, i0, k0);
    copy_lines<BN, B_ALONG_K>(shared.in[ring.stage].b, full, copy_b, j0, k0);
    ring.next();
}

// The descriptor of the matrix of an operand's stage that begins at a line and a term. 8 rows of 128 bytes repeat every
// 1024 bytes, boxes of SPAN lines every SPAN rows.
template <bool ALONG_K> __device__ __forceinline__ unsigned long long matrix(unsigned operand, int line, int k) {
    const unsigned at = operand + (ALONG_K ? line * SPAN + k : line * BK + k * SPAN) * (int)sizeof(Elem);
    const unsigned boxes = ALONG_K ? 1 : SPAN * 128 >> 4;
    return (unsigned long long)(1u << 30 | 1024 >> 4) << 32 | boxes << 16 | at >> 4 & 0x3fff;
}

__device__ __forceinline__ void release(Shared& shared, int stage) {
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(&shared.empty[stage])) : "memory");
}

// Leaves the sums over first <= k < end of a warpgroup's rows in its registers. One stage's products are on their way
// while the next one's begin.
__device__ __forceinline__ void multiply(Shared& shared, Ring& ring, float (&sums)[SUMS], Index first, Index end) {
    const int line = (threadIdx.x / 128 - 1) * WM;
    int before = 0;
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
#pragma unroll 1
    for (Index k0 = first; k0 < end; k0 += BK) {
        wait(shared.full[ring.stage], ring.parity);
        const unsigned a = shared_address(shared.in[ring.stage].a), b = shared_address(shared.in[ring.stage].b);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < BK; k += 16)
#pragma unroll
            for (int i = 0; i < WM / 64; i++)
                wgmma(*(float(*)[BN / 2])(sums + i * BN / 2), matrix<A_ALONG_K>(a, line + i * 64, k), matrix<B_ALONG_K>(b, 0, k));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (k0 > first) release(shared, before);
        before = ring.stage;
        ring.next();
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    if (first < end) release(shared, before);
}

// Moves the first 32 sums of each thread to the passage, and the others up.
__device__ __forceinline__ void pass(Passage& passage, float (&sums)[SUMS]) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int x = 0; x < 32; x += 2) {
        const kiln_vec<float, 2> two = {sums[x], sums[x + 1]};
        kiln_store(passage.place(lane / 4 + x / 2 % 2 * 8, x / 4 * 8 + lane % 4 * 2), two);
    }
    __syncwarp();
#pragma unroll
    for (int x = 32; x < SUMS; x++) sums[x - 32] = sums[x];
}
