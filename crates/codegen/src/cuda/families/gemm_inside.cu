// Recomputes NaN elements of a tile without terms in the padding. In the product of stages, an infinite factor turns zeros
// of the padding into NaN.

// True if an element of LINES lines of an operand is not finite, among those that a thread reads.
template <int LINES, class Operand>
__device__ __forceinline__ bool has_non_finite(const Operand& from, Index line0, Index first, Index end) {
    constexpr int STEP = THREADS > LINES ? THREADS / LINES : 1;
    bool non_finite = false;
#pragma unroll 1
    for (int l = threadIdx.x % LINES; l < LINES; l += THREADS) {
        const auto line = from.line(line0 + l);
#pragma unroll 1
        for (Index k = first + threadIdx.x / LINES; k < end; k += STEP) {
            const Acc x = load(from.at(line, k));
            non_finite = non_finite || x - x != 0;
        }
    }
    return non_finite;
}

template <class A, class B>
__device__ __forceinline__ void sum_inside(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    bool is_nan = false;
    for (int e = threadIdx.x; e < BM * BN; e += THREADS) {
        const Acc own = shared.out[e / BN][out_column(e / BN, e % BN)];
        is_nan = is_nan || own != own;
    }
    if (!__syncthreads_or(is_nan)) return;
    bool may_differ = A_BOUNDED && has_non_finite<BN>(b, j0, first, end);
    may_differ = may_differ || B_BOUNDED && has_non_finite<BM>(a, i0, first, end);
    if (!__syncthreads_or(may_differ)) return;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int e = threadIdx.x; e < BM * BN; e += THREADS) {
        Acc& own = shared.out[e / BN][out_column(e / BN, e % BN)];
        // A NaN among the first terms is the result. A warp recomputes each of the other elements.
        bool is_open = own != own;
        if (is_open) {
            const auto row = a.line(i0 + e / BN);
            const auto column = b.line(j0 + e % BN);
#pragma unroll 1
            for (Index k = first; k < end && k < first + 32 && is_open; k++) {
                const Acc x = term(a, row, b, column, k);
                is_open = x == x;
            }
        }
#pragma unroll 1
        for (unsigned left = __ballot_sync(0xffffffffu, is_open); left != 0; left &= left - 1) {
            const int owner = __ffs(left) - 1, at = e - lane + owner;
            const auto row = a.line(i0 + at / BN);
            const auto column = b.line(j0 + at % BN);
            Acc sum = 0;
#pragma unroll 1
            for (Index k = first + lane; k < end && sum == sum; k += 32) sum += term(a, row, b, column, k);
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane == owner) own = sum;
        }
    }
    __syncthreads();
}
