// Leaves the sums over first <= k < end in shared.out.
template <class A, class B>
__device__ __forceinline__ void multiply(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wi = warp / (BN / WN) * WM, wj = warp % (BN / WN) * WN;
    const Reader<BM, A_ALONG_K, A_VECTOR, A_WHOLE, A> a_reader(a, i0);
    const Reader<BN, B_ALONG_K, B_VECTOR, B_WHOLE, B> b_reader(b, j0);
    const Matrices<Stage<BM, A_ALONG_K>, WM, false> a_matrices(wi);
    const Matrices<Stage<BN, B_ALONG_K>, WN, true> b_matrices(wj);
    Acc sum[WM / 16][WN / 8][4] = {};
    int stage = 0;
    // The first rounds only read, so that reading is compiled once. The stage that is read into was multiplied in the
    // round before, which all threads have left behind the barrier.
#pragma unroll 1 // and not taken apart
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
        if (k0 >= first) add_products(sum, shared.in[stage].a, shared.in[stage].b, a_matrices, b_matrices);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int x = 0; x < 4; x += 2) {
                const kiln_vec<Acc, 2> two = {sum[i][j][x], sum[i][j][x + 1]};
                kiln_store(&shared.out[wi + i * 16 + lane / 4 + x / 2 * 8][out_column(wj + j * 8 + lane % 4 * 2)], two);
            }
    __syncthreads();
}
