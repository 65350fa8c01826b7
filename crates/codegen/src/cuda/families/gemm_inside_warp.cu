// Recomputes NaN elements of a warp's part of a tile without terms in the padding. Terms are numbered as in stages, where
// a tap has TAP_TERMS terms for CHANNELS channels.

__device__ __forceinline__ bool is_channel(Index k) { return k % TAP_TERMS < CHANNELS; }

// The number of a term without the terms that pad taps.
__device__ __forceinline__ Index unpadded_term(Index k) { return k / TAP_TERMS * CHANNELS + k % TAP_TERMS; }

// True if one of `lines` lines of filters has an infinity or a NaN among terms first <= k < end.
template <class Filters>
__device__ __forceinline__ bool has_non_finite(const Filters& filters, Index line, int lines, Index first, Index end) {
    bool non_finite = false;
#pragma unroll 1
    for (int i = 0; i < lines; i++) {
        const auto filter = filters.line(line + i);
#pragma unroll 1
        for (Index k = first + threadIdx.x % 32; k < end; k += 32) {
            const Acc x = is_channel(k) ? load(filters.at(filter, unpadded_term(k))) : 0;
            non_finite = non_finite || x - x != 0;
        }
    }
    return __any_sync(0xffffffffu, non_finite);
}

template <class A, class B>
__device__ __forceinline__ void sum_inside(StagingBuffer& staging, const A& a, const B& b, Index i1, Index j1, Index first, Index end) {
    const int lane = threadIdx.x % 32;
    bool is_nan = false;
#pragma unroll 1
    for (int e = lane; e < 16 * COLUMNS; e += 32) {
        const Acc element = *staging.address(e / COLUMNS, e % COLUMNS);
        is_nan = is_nan || element != element;
    }
    if (!__any_sync(0xffffffffu, is_nan)) return;
    // Only an infinite factor turns a zero of the padding into NaN.
    if (!(IMAGES_LEFT ? has_non_finite(b, j1, COLUMNS, first, end) : has_non_finite(a, i1, 16, first, end))) return;
#pragma unroll 1
    for (int e = 0; e < 16 * COLUMNS; e++) {
        Acc& element = *staging.address(e / COLUMNS, e % COLUMNS);
        if (element == element) continue;
        const auto row = a.line(i1 + e / COLUMNS);
        const auto column = b.line(j1 + e % COLUMNS);
        Acc sum = 0;
#pragma unroll 1
        for (Index k = first + lane; k < end && sum == sum; k += 32)
            if (is_channel(k)) sum += term(a, row, b, column, unpadded_term(k));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) element = sum;
    }
    __syncwarp();
}
