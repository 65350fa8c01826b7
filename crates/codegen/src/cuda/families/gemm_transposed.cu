// Stores of a transposed product, whose rows are contiguous in memory, and which may have 8 columns only.

// The accumulators that a thread stages at a time, and the number of such steps along BN.
constexpr int STAGED = BN < COLUMNS ? BN / 2 : COLUMNS / 2, COLUMN_STEPS = BN / 2 / STAGED;

// The address of an element in a staging buffer of 16 contiguous rows and at most COLUMNS columns. Chunks of 16 bytes are
// permuted to avoid bank conflicts.
__device__ __forceinline__ Acc* transposed_address(StagingBuffer& staging, int row, int column) {
    const int pair = column / 2, chunk = column % 2 * 4 + row / 4;
    return staging.elements + pair * 32 + (chunk ^ pair % 4 * 2) * 4 + row % 4;
}

template <int WIDTH> __device__ __forceinline__ kiln_vec<Acc, WIDTH> load_transposed(StagingBuffer& staging, int row, int column) {
    constexpr int STEP = WIDTH < 4 ? WIDTH : 4;
    kiln_vec<Acc, WIDTH> result;
#pragma unroll
    for (int x = 0; x < WIDTH; x += STEP) {
        const auto chunk = kiln_load<STEP>(transposed_address(staging, row + x, column));
#pragma unroll
        for (int y = 0; y < STEP; y++) result.v[x + y] = chunk.v[y];
    }
    return result;
}

// Moves the first STAGED accumulators of each thread to the staging buffer, and shifts the others down.
__device__ __forceinline__ void stage_transposed(StagingBuffer& staging, Acc (&accumulators)[SUMS]) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int x = 0; x < STAGED; x++)
        *transposed_address(staging, lane / 4 + x / 2 % 2 * 8, x / 4 * 8 + lane % 4 * 2 + x % 2) = accumulators[x];
    __syncwarp();
#pragma unroll
    for (int x = STAGED; x < SUMS; x++) accumulators[x - STAGED] = accumulators[x];
}
