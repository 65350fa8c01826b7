// A block computes BM rows and BV columns of one of the gradients of attention. Its rows are lines of the matrix of
// scores: rows of it for the gradient of the query, columns where TRANSPOSED, for those of key and value. It walks along
// them, BN at a time, computes the weights again, and of them the gradients of the scores.

struct Block {
    union {
        Weighted in;
        Acc out[BM][BV + 1];
    };
};

// Scores of a line's part are products of `a` and `b`, gradients of weights those of `c` and `d`. Leaves the sums of
// the gradients of scores, or of the weights where OF_VALUES, times `v` in block.out.
template <class A, class B, class C, class D, class V>
__device__ __forceinline__ void derive(Block& block, const A& a, const B& b, const C& c, const D& d, const V& v, const Scores& scores, const Acc* rows, Index l0, Index c0, Index length, Index keys, Index width, Index columns) {
    constexpr int EACH = BM * BN / THREADS;
    const Index all = TRANSPOSED ? length : keys;
    const Index begin = CAUSAL && TRANSPOSED ? l0 : 0, end = CAUSAL && !TRANSPOSED && all > l0 + BM ? l0 + BM : all;
    Sums sums;
#pragma unroll 1
    for (Index w0 = begin; w0 < end; w0 += BN) {
        multiply(block.in.scores, a, b, l0, w0, 0, width);
        Acc products[EACH];
#pragma unroll
        for (int x = 0; x < EACH; x++) {
            const int e = threadIdx.x + x * THREADS;
            products[x] = block.in.scores.out[e / BN][e % BN];
        }
        if constexpr (!OF_VALUES) {
            __syncthreads();
            multiply(block.in.scores, c, d, l0, w0, 0, columns);
        }
        sums.read(block.in, v, c0, w0, end);
#pragma unroll
        for (int x = 0; x < EACH; x++) {
            const int e = threadIdx.x + x * THREADS;
            const Index line = l0 + e / BN, other = w0 + e % BN;
            const Index i = TRANSPOSED ? other : line, j = TRANSPOSED ? line : other;
            Acc share = 0;
            if (i < length && j < keys && (!CAUSAL || j <= i)) {
                const Acc* row = rows + i * 3;
                share = exp(scores.at(products[x], i, j) - row[0]) * row[1];
                if constexpr (OF_VALUES) share = scores.dropped(share, i, j);
                else share *= (scores.dropped(block.in.scores.out[e / BN][e % BN], i, j) - row[2]) * scores.scale;
            }
            block.in.keep(e / BN, e % BN, share);
        }
        sums.wait();
        __syncthreads();
        sums.add(block.in, v, c0, w0, end);
        __syncthreads();
    }
    __syncthreads();
    sums.leave(block.out);
    __syncthreads();
}
