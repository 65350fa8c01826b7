// The common part of kernels of warpgroups, by clusters of CLUSTER blocks. A thread of the first warpgroup, the producer,
// copies boxes of operands to a ring of stages in shared memory. The WARPS warps of the other warpgroups multiply them.

constexpr int THREADS = 128 + 32 * WARPS;
constexpr int SPAN = 128 / sizeof(Elem), TERMS = 32 / sizeof(Elem), COLUMNS = 64;

// A warp's staging buffer for 16 rows and COLUMNS columns of accumulators, from which threads store vectors. Chunks of 16
// bytes are permuted to avoid bank conflicts.
struct StagingBuffer {
    alignas(1024) Acc elements[16 * COLUMNS];
    __device__ __forceinline__ Acc* address(int row, int column) {
        const int chunk = column / 4;
        return elements + row * COLUMNS + (chunk ^ row % 4 * 2 ^ chunk >> 3) * 4 + column % 4;
    }
    template <int WIDTH> __device__ __forceinline__ kiln_vec<Acc, WIDTH> load(int row, int column) {
        constexpr int STEP = WIDTH < 4 ? WIDTH : 4;
        kiln_vec<Acc, WIDTH> result;
#pragma unroll
        for (int x = 0; x < WIDTH; x += STEP) {
            const auto chunk = kiln_load<STEP>(address(row, column + x));
#pragma unroll
            for (int y = 0; y < STEP; y++) result.v[x + y] = chunk.v[y];
        }
        return result;
    }
};

// The index of a warp in its block. The shuffle tells the compiler that it is uniform.
__device__ __forceinline__ int warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// The barriers of N stages: `full` counts the bytes that arrive, `empty` the warps of the cluster that have multiplied.
template <int N> struct Barriers {
    unsigned long long full[N], empty[N];
    __device__ __forceinline__ void init() {
        for (int i = 0; i < N; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(full + i)) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(empty + i)), "n"(WARPS * CLUSTER) : "memory");
        }
    }
};

template <class... All> __device__ __forceinline__ void init_barriers(All&... barriers) {
    if (threadIdx.x == 0) {
        (barriers.init(), ...);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (CLUSTER > 1) kiln_meet_cluster();
    else __syncthreads();
}

// The rank of the block in its cluster.
__device__ __forceinline__ int cluster_rank() {
    int rank = 0;
    if constexpr (CLUSTER > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// The next stage, and the parity of its barriers' phase.
template <int N> struct Ring {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
        stage = stage + 1 < N ? stage + 1 : 0;
        parity ^= stage == 0;
    }
};

__device__ __forceinline__ void wait(const unsigned long long& barrier, unsigned parity) {
    unsigned done;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                    : "=r"(done) : "r"(shared_address(&barrier)), "r"(parity) : "memory");
    while (!done);
}

// Waits until the next stage is empty. Returns its barrier, which then expects BYTES bytes.
template <int BYTES, int N> __device__ __forceinline__ unsigned acquire(const Barriers<N>& barriers, const Ring<N>& ring) {
    wait(barriers.empty[ring.stage], ring.parity ^ 1);
    const unsigned full = shared_address(&barriers.full[ring.stage]);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "n"(BYTES) : "memory");
    return full;
}

// Waits until the cluster has multiplied all stages, after which no other block signals this block's barriers.
template <int N> __device__ __forceinline__ void drain(const Barriers<N>& barriers, Ring<N> ring) {
    for (int i = 0; i < N; i++, ring.next()) wait(barriers.empty[ring.stage], ring.parity ^ 1);
}

// Copies LINES lines of DEPTH terms as boxes whose rows are 128 bytes of contiguous terms or lines. Elements outside of
// the operand become 0.
template <int LINES, int DEPTH, bool ALONG_K, class T, class Copy>
__device__ __forceinline__ void copy_lines(const T* to, unsigned full, const Copy& copy, int line, int k) {
#pragma unroll
    for (int x = 0; x < (ALONG_K ? DEPTH : LINES); x += 128 / sizeof(T))
        copy(shared_address(to + x * (ALONG_K ? LINES : DEPTH)), full, ALONG_K ? line : line + x, ALONG_K ? k + x : k);
}

// The descriptor of a matrix in these boxes that begins at a line and a term. Groups of 8 rows are 1024 bytes apart, and
// boxes of SPAN lines are DEPTH rows apart.
template <int LINES, int DEPTH, bool ALONG_K> __device__ __forceinline__ unsigned long long matrix(unsigned operand, int line, int k) {
    // Addresses in units of 16 bytes, which fit into 14 bits.
    constexpr int CHUNK = 16 / sizeof(Elem), ROW = 8;
    const int chunk = ALONG_K ? k / SPAN * LINES * ROW + line * ROW + k % SPAN / CHUNK : line * (DEPTH / CHUNK) + k * ROW;
    return (unsigned long long)(1u << 30 | 1024 >> 4) << 32 | ((ALONG_K ? 1 : DEPTH * ROW) << 16) + (operand >> 4) + chunk;
}

// Asynchronous products use registers without the compiler's knowledge. `pin` keeps it from moving other accesses to
// these across.
__device__ __forceinline__ void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void pin(int& x) { asm volatile("" : "+r"(x)::"memory"); }
__device__ __forceinline__ void pin(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class T, int N> __device__ __forceinline__ void pin(T (&registers)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) pin(registers[i]);
}

// Begins asynchronous products that use these registers.
template <class... All> __device__ __forceinline__ void begin_products(All&... registers) {
    (pin(registers), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits for all but the last PENDING commits, whose products don't use these registers.
template <int PENDING, class... All> __device__ __forceinline__ void finish_products(All&... registers) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (pin(registers), ...);
}

// Signals to all blocks of the cluster that the warp has multiplied a stage.
template <int N> __device__ __forceinline__ void release(Barriers<N>& barriers, int stage) {
    const unsigned empty = shared_address(&barriers.empty[stage]), lane = threadIdx.x % 32;
    if (lane >= CLUSTER) return;
    if constexpr (CLUSTER > 1)
        asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [at];}"
                     ::"r"(empty), "r"(lane) : "memory");
    else
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(empty) : "memory");
}

// Moves the first 32 accumulators of each thread to the staging buffer, and shifts the others down.
template <int COUNT> __device__ __forceinline__ void stage_accumulators(StagingBuffer& staging, Acc (&accumulators)[COUNT]) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int x = 0; x < 32; x += 2) {
        const kiln_vec<Acc, 2> pair = {accumulators[x], accumulators[x + 1]};
        kiln_store(staging.address(lane / 4 + x / 2 % 2 * 8, x / 4 * 8 + lane % 4 * 2), pair);
    }
    __syncwarp();
#pragma unroll
    for (int x = 32; x < COUNT; x++) accumulators[x - 32] = accumulators[x];
}
