// Computes the sums over first <= k < end in shared.out.
template <class A, class B>
__device__ __forceinline__ void multiply(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wi = warp / (BN / WN) * WM, wj = warp % (BN / WN) * WN;
    const Matrices<Stage<BM, A_ALONG_K>, WM, false> a_matrices(wi);
    const Matrices<Stage<BN, B_ALONG_K>, WN, true> b_matrices(wj);
    Acc sum[WM / 16][WN / 8][4] = {};
    each_stage(shared, a, b, i0, j0, first, end, [&](Stages& in) { add_products(sum, in.a, in.b, a_matrices, b_matrices); });
#pragma unroll
    for (int i = 0; i < WM / 16; i++)
#pragma unroll
        for (int j = 0; j < WN / 8; j++)
#pragma unroll
            for (int x = 0; x < 4; x += 2) {
                const kiln_vec<Acc, 2> two = {sum[i][j][x], sum[i][j][x + 1]};
                const int row = wi + i * 16 + lane / 4 + x / 2 * 8;
                kiln_store(&shared.out[row][out_column(row, wj + j * 8 + lane % 4 * 2)], two);
            }
    __syncthreads();
}
