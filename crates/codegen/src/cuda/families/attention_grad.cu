// A block computes BM rows and BV columns of a gradient of attention. Each row belongs to a line of the matrix of
// scores: a row for the query's gradient, a column (TRANSPOSED) for those of key and value. The block walks along the
// lines, BN scores at a time, recomputes the weights, and derives the gradients of the scores.

struct Block {
    union {
        Weighted in;
        Acc out[BM][BV + 1];
    };
};

// Stores the gradients of scores, or with VALUE_GRADIENT the weights, times `v` in block.out. Scores are products of
// `a` and `b`, gradients of weights products of `c` and `d`.
template <class A, class B, class C, class D, class V>
__device__ __forceinline__ void compute_gradient(Block& block, const A& a, const B& b, const C& c, const D& d, const V& v, const Scores& scores, const Acc* rows, Index l0, Index c0, Index length, Index keys, Index width, Index columns) {
    constexpr int SCORES_PER_THREAD = BM * BN / THREADS;
    const Index extent = TRANSPOSED ? length : keys;
    const Index begin = CAUSAL && TRANSPOSED ? l0 : 0, end = CAUSAL && !TRANSPOSED && extent > l0 + BM ? l0 + BM : extent;
    Accumulators accumulators;
#pragma unroll 1
    for (Index w0 = begin; w0 < end; w0 += BN) {
        multiply(block.in.scores, a, b, l0, w0, 0, width);
        Acc products[SCORES_PER_THREAD];
#pragma unroll
        for (int x = 0; x < SCORES_PER_THREAD; x++) {
            const int e = threadIdx.x + x * THREADS;
            products[x] = block.in.scores.out[e / BN][e % BN];
        }
        if constexpr (!VALUE_GRADIENT) {
            __syncthreads();
            multiply(block.in.scores, c, d, l0, w0, 0, columns);
        }
        accumulators.begin_loads(block.in, v, c0, w0, end);
#pragma unroll
        for (int x = 0; x < SCORES_PER_THREAD; x++) {
            const int e = threadIdx.x + x * THREADS;
            const Index line = l0 + e / BN, other = w0 + e % BN;
            const Index i = TRANSPOSED ? other : line, j = TRANSPOSED ? line : other;
            Acc factor = 0;
            if (i < length && j < keys && (!CAUSAL || j <= i)) {
                const Acc* row = rows + i * 3;
                factor = exp(scores.scale_and_mask(products[x], i, j) - row[0]) * row[1];
                if constexpr (VALUE_GRADIENT) factor = scores.apply_dropout(factor, i, j);
                else factor *= (scores.apply_dropout(block.in.scores.out[e / BN][e % BN], i, j) - row[2]) * scores.scale;
            }
            block.in.set_weight(e / BN, e % BN, factor);
        }
        accumulators.wait();
        __syncthreads();
        accumulators.accumulate(block.in, v, c0, w0, end);
        __syncthreads();
    }
    __syncthreads();
    accumulators.copy_to(block.out);
    __syncthreads();
}
