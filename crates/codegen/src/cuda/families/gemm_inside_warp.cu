// Sums elements of a warp's part of a tile that are NaN again, over the terms of which both operands have an element.
// Terms are numbered as in stages: those of a tap that are past its CHANNELS channels have none.

__device__ __forceinline__ bool is_channel(Index k) { return k % TAP_TERMS < CHANNELS; }

__device__ __forceinline__ Index without_padding(Index k) { return k / TAP_TERMS * CHANNELS + k % TAP_TERMS; }

// True if so many lines of filters have an infinity or a NaN among the terms of a part.
template <class Filters>
__device__ __forceinline__ bool has_non_finite(const Filters& filters, Index line, int lines, Index first, Index end) {
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < lines; i++) {
        const auto filter = filters.line(line + i);
#pragma unroll 1
        for (Index k = first + threadIdx.x % 32; k < end; k += 32) {
            const Acc x = is_channel(k) ? load(filters.at(filter, without_padding(k))) : 0;
            found = found || x - x != 0;
        }
    }
    return __any_sync(0xffffffffu, found);
}

template <class A, class B>
__device__ __forceinline__ void sum_inside(Passage& passage, const A& a, const B& b, Index i1, Index j1, Index first, Index end) {
    const int lane = threadIdx.x % 32;
    bool found = false;
#pragma unroll 1
    for (int e = lane; e < 16 * COLUMNS; e += 32) {
        const Acc own = *passage.place(e / COLUMNS, e % COLUMNS);
        found = found || own != own;
    }
    if (!__any_sync(0xffffffffu, found)) return;
    // Only an infinite factor makes a NaN of a zero outside of an image.
    if (!(IMAGES_LEFT ? has_non_finite(b, j1, COLUMNS, first, end) : has_non_finite(a, i1, 16, first, end))) return;
#pragma unroll 1
    for (int e = 0; e < 16 * COLUMNS; e++) {
        Acc& own = *passage.place(e / COLUMNS, e % COLUMNS);
        if (own == own) continue;
        const auto row = a.line(i1 + e / COLUMNS);
        const auto column = b.line(j1 + e % COLUMNS);
        Acc sum = 0;
#pragma unroll 1
        for (Index k = first + lane; k < end && sum == sum; k += 32)
            if (is_channel(k)) sum += term(a, row, b, column, without_padding(k));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) own = sum;
    }
    __syncwarp();
}
