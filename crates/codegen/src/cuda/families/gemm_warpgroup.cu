// A block's BM x BN tiles of products, by wgmma. The blocks of a cluster have tiles of the same columns; each copies its
// part of B to all of them. Each consumer warpgroup has WM x BN accumulators in registers.

constexpr int SUMS = WM / 64 * BN / 2;
static_assert(BK == SPAN, "a stage is a row of a box long");

struct alignas(1024) Shared {
    struct { Raw a[BM * BK]; Elem b[BN * BK]; } in[STAGES];
    StagingBuffer staging[WARPS];
    Barriers<STAGES> barriers;
};

// Copies the terms k0 to k0 + BK of a tile to the next stage, once it is empty.
template <class CopyA, class CopyB>
__device__ __forceinline__ void copy_stage(Shared& shared, Ring<STAGES>& ring, const CopyA& copy_a, const CopyB& copy_b, int rank, int i0, int j0, int k0) {
    constexpr int LINES = BN / CLUSTER;
    const unsigned full = acquire<sizeof(*shared.in)>(shared.barriers, ring);
    copy_lines<BM, BK, A_ALONG_K>(shared.in[ring.stage].a, full, copy_a, i0, k0);
    copy_lines<LINES, BK, B_ALONG_K>(shared.in[ring.stage].b + rank * LINES * BK, full, copy_b, j0 + rank * LINES, k0);
    ring.next();
}
