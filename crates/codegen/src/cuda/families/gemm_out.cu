// N neighbouring elements of the tile in shared memory.
template <int N> __device__ __forceinline__ kiln_vec<Acc, N> tile_vector(const Shared& shared, int row, int column) {
    constexpr int MOST = 16 / sizeof(Acc), EACH = N < MOST ? N : MOST;
    kiln_vec<Acc, N> all;
#pragma unroll
    for (int x = 0; x < N; x += EACH) {
        const auto some = kiln_load<EACH>(&shared.out[row][out_column(row, column + x)]);
#pragma unroll
        for (int y = 0; y < EACH; y++) all.v[x + y] = some.v[y];
    }
    return all;
}
