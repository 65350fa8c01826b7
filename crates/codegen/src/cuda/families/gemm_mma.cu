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
