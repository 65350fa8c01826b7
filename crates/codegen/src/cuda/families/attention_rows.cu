// The three numbers of a row that gradients of scores need: its max, the factor that normalises its weights, and the
// sum of its weights times their gradients. The keys are walked as in the forward pass, BN at a time.

struct Block {
    Shared in;
    Acc products[BM][BN + 1];
    Acc running_max[BM], denominator[BM], weighted_gradient[BM];
};

// Updates the numbers of rows by keys j0 <= j < end. A warp takes whole rows.
__device__ __forceinline__ void add_keys(Block& block, const Scores& scores, Index i0, Index j0, Index length, Index end) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < BM; r += THREADS / 32) {
        const Index i = i0 + r;
        const Index visible_end = CAUSAL && i + 1 < end ? i + 1 : end, last = i < length ? visible_end : 0;
        const Acc previous_max = block.running_max[r];
        Acc x[BN / 32];
        const Acc running_max = max_score(x, block.products[r], scores, i, j0, last, previous_max);
        // While no key was seen, every weight is exp(-inf).
        const Acc base = running_max == Acc(-kiln_inf) ? Acc(0) : running_max;
        Acc sum = 0, weighted_gradient = 0;
#pragma unroll
        for (int c = 0; c < BN / 32; c++) {
            const Acc weight = exp(x[c] - base);
            sum += weight;
            const Index j = j0 + c * 32 + lane;
            const Acc gradient = block.in.out[r][c * 32 + lane];
            weighted_gradient = fma(weight, j < last ? scores.apply_dropout(gradient, i, j) : gradient, weighted_gradient);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
            weighted_gradient += __shfl_xor_sync(0xffffffffu, weighted_gradient, step);
        }
        __syncwarp();
        if (lane == 0) {
            const Acc correction = exp(previous_max - base);
            block.running_max[r] = running_max;
            block.denominator[r] = block.denominator[r] * correction + sum;
            block.weighted_gradient[r] = block.weighted_gradient[r] * correction + weighted_gradient;
        }
    }
}

// Writes the three numbers of each row. `g` is the gradient of the result.
template <class Q, class K, class G, class V>
__device__ __forceinline__ void reduce_rows(Block& block, const Q& q, const K& k, const G& g, const V& v, const Scores& scores, Acc* rows, Index i0, Index length, Index keys, Index width, Index columns) {
#pragma unroll 1
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        block.running_max[r] = -kiln_inf;
        block.denominator[r] = block.weighted_gradient[r] = 0;
    }
    const Index end = CAUSAL && keys > i0 + BM ? i0 + BM : keys;
#pragma unroll 1
    for (Index j0 = 0; j0 < end; j0 += BN) {
        multiply(block.in, q, k, i0, j0, 0, width);
#pragma unroll 4
        for (int e = threadIdx.x; e < BM * BN; e += THREADS) block.products[e / BN][e % BN] = block.in.out[e / BN][e % BN];
        __syncthreads();
        multiply(block.in, g, v, i0, j0, 0, columns);
        add_keys(block, scores, i0, j0, length, end);
        __syncthreads();
    }
    __syncthreads();
#pragma unroll 1
    for (int r = threadIdx.x; r < BM && i0 + r < length; r += THREADS) {
        const Acc running_max = block.running_max[r], denominator = block.denominator[r];
        const bool sees_no_key = CAUSAL || MASK != NONE ? denominator == 0 : keys == 0;
        const Acc normalizer = sees_no_key ? Acc(1) : inverse(denominator);
        Acc* row = rows + (i0 + r) * 3;
        row[0] = running_max == Acc(-kiln_inf) ? Acc(0) : running_max;
        row[1] = normalizer;
        row[2] = block.weighted_gradient[r] * normalizer;
    }
}
