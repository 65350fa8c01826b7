// A block's BM x BN tiles of sums of products, by wgmma. The blocks of a cluster have tiles below each other; each
// brings its part of B to all of them. Each warpgroup that multiplies keeps WM x BN sums of a tile in
// registers.

constexpr int SUMS = WM / 64 * BN / 2;
static_assert(BK == SPAN, "a stage is a row of a box long");

struct alignas(1024) Shared {
    struct { Elem a[BM * BK], b[BN * BK]; } in[STAGES];
    Passage passages[WARPS];
    Barriers<STAGES> barriers;
};

// Copies the terms k0 to k0 + BK of a tile to the next stage, once it is empty.
template <class CopyA, class CopyB>
__device__ __forceinline__ void copy_stage(Shared& shared, Ring<STAGES>& ring, const CopyA& copy_a, const CopyB& copy_b, int rank, int i0, int j0, int k0) {
    constexpr int LINES = BN / CLUSTER;
    const unsigned full = claim<sizeof(*shared.in)>(shared.barriers, ring);
    copy_lines<BM, BK, A_ALONG_K>(shared.in[ring.stage].a, full, copy_a, i0, k0);
    copy_lines<LINES, BK, B_ALONG_K>(shared.in[ring.stage].b + rank * LINES * BK, full, copy_b, j0 + rank * LINES, k0);
    ring.next();
}

// Leaves the sums over first <= k < end of a warpgroup's rows in its registers. One stage's products are on their way
// while the next one's begin.
__device__ __forceinline__ void multiply(Shared& shared, Ring<STAGES>& ring, Acc (&sums)[SUMS], Index first, Index end) {
    const int line = (threadIdx.x / 128 - 1) * WM;
    int before = 0;
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
#pragma unroll 1
    for (Index k0 = first; k0 < end; k0 += BK) {
        wait(shared.barriers.full[ring.stage], ring.parity);
        const unsigned a = shared_address(shared.in[ring.stage].a), b = shared_address(shared.in[ring.stage].b);
        begin_products(sums);
#pragma unroll
        for (int k = 0; k < BK; k += TERMS)
#pragma unroll
            for (int i = 0; i < WM / 64; i++)
                wgmma<1>(*(Acc(*)[BN / 2])(sums + i * BN / 2), matrix<BM, BK, A_ALONG_K>(a, line + i * 64, k), matrix<BN, BK, B_ALONG_K>(b, 0, k));
        commit_products();
        finish_products<1>();
        if (k0 > first) release(shared.barriers, before);
        before = ring.stage;
        ring.next();
    }
    finish_products<0>(sums);
    if (first < end) release(shared.barriers, before);
}
