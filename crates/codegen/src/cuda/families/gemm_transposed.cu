// Stores of a transposed product: neighbours in memory are rows of sums, as few as 8 columns are rows of the result.

// The sums that a thread passes at a time, and how many times they go into BN.
constexpr int TOGETHER = BN < COLUMNS ? BN / 2 : COLUMNS / 2, ACROSS = BN / 2 / TOGETHER;

// A place in 16 rows and at most COLUMNS columns, 16 rows next to each other. Chunks of 16 bytes are permuted, so that
// threads that pass sums of 8 rows and 4 columns, every other one, don't meet in a bank.
__device__ __forceinline__ Acc* transposed_place(Passage& passage, int row, int column) {
    const int pair = column / 2, chunk = column % 2 * 4 + row / 4;
    return passage.sums + pair * 32 + (chunk ^ pair % 4 * 2) * 4 + row % 4;
}

template <int WIDTH> __device__ __forceinline__ kiln_vec<Acc, WIDTH> load_transposed(Passage& passage, int row, int column) {
    constexpr int SOME = WIDTH < 4 ? WIDTH : 4;
    kiln_vec<Acc, WIDTH> all;
#pragma unroll
    for (int x = 0; x < WIDTH; x += SOME) {
        const auto some = kiln_load<SOME>(transposed_place(passage, row + x, column));
#pragma unroll
        for (int y = 0; y < SOME; y++) all.v[x + y] = some.v[y];
    }
    return all;
}

// Moves the first sums of each thread to the passage, and the others up.
__device__ __forceinline__ void pass_transposed(Passage& passage, Acc (&sums)[SUMS]) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int x = 0; x < TOGETHER; x++)
        *transposed_place(passage, lane / 4 + x / 2 % 2 * 8, x / 4 * 8 + lane % 4 * 2 + x % 2) = sums[x];
    __syncwarp();
#pragma unroll
    for (int x = TOGETHER; x < SUMS; x++) sums[x - TOGETHER] = sums[x];
}
