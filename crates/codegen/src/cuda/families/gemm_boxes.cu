// Products of two operands in shared memory.

// Computes the sums of a warpgroup's rows over first <= k < end. The products of two stages overlap.
__device__ __forceinline__ void multiply(Shared& shared, Ring<STAGES>& ring, Acc (&sums)[SUMS], Index first, Index end) {
    const int line = (threadIdx.x / 128 - 1) * WM;
    const unsigned stages = shared_address(shared.in);
    int before = -1;
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
#pragma unroll 1
    for (Index k0 = first; k0 < end; k0 += BK) {
        wait(shared.barriers.full[ring.stage], ring.parity);
        const unsigned a = stages + ring.stage * (int)sizeof(*shared.in), b = a + sizeof(shared.in->a);
        begin_products(sums);
#pragma unroll
        for (int k = 0; k < BK; k += TERMS)
#pragma unroll
            for (int i = 0; i < WM / 64; i++)
                wgmma<1>(*(Acc(*)[BN / 2])(sums + i * BN / 2), matrix<BM, BK, A_ALONG_K>(a, line + i * 64, k), matrix<BN, BK, B_ALONG_K>(b, 0, k));
        commit_products();
        finish_products<1>();
        if (before >= 0) release(shared.barriers, before);
        before = ring.stage;
        ring.next();
    }
    finish_products<0>(sums);
    if (before >= 0) release(shared.barriers, before);
}
