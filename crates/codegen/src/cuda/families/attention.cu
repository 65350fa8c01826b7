// A block computes BM rows and BV columns of attention with an online softmax (Milakov and Gimelshein, "Online
// normalizer calculation for softmax"). It walks the keys, BN at a time. Weights are
// exponentials relative to the running max, and accumulators are rescaled when that grows.

struct Block {
    union {
        Weighted in;
        Acc out[BM][BV + 1];
    };
    // A row's running max, its denominator, and the correction of its accumulators.
    Acc running_max[BM], denominator[BM], correction[BM];
};

// Replaces the scores of keys j0 <= j < end by their weights. A warp takes whole rows.
__device__ __forceinline__ void weigh(Block& block, const Scores& scores, Index i0, Index j0, Index length, Index end) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < BM; r += THREADS / 32) {
        const Index i = i0 + r;
        const Index visible_end = CAUSAL && i + 1 < end ? i + 1 : end, last = i < length ? visible_end : 0;
        const Acc previous_max = block.running_max[r];
        Acc x[BN / 32];
        const Acc running_max = max_score(x, block.in.scores.out[r], scores, i, j0, last, previous_max);
        // While no key was seen, every weight is exp(-inf).
        const Acc base = running_max == Acc(-kiln_inf) ? Acc(0) : running_max;
        Acc sum = 0;
#pragma unroll
        for (int c = 0; c < BN / 32; c++) {
            const Acc weight = exp(x[c] - base);
            sum += weight;
            const Index j = j0 + c * 32 + lane;
            block.in.set_weight(r, c * 32 + lane, j < last ? scores.apply_dropout(weight, i, j) : weight);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        __syncwarp();
        if (lane == 0) {
            const Acc correction = exp(previous_max - base);
            block.running_max[r] = running_max;
            block.correction[r] = correction;
            block.denominator[r] = block.denominator[r] * correction + sum;
        }
    }
}

// Stores the weighted sums of values in block.out, and the factor that normalises them in block.denominator.
template <class Q, class K, class V>
__device__ __forceinline__ void attend(Block& block, const Q& q, const K& k, const V& v, const Scores& scores, Index i0, Index c0, Index length, Index keys, Index width) {
#pragma unroll 1
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        block.running_max[r] = -kiln_inf;
        block.denominator[r] = 0;
    }
    Accumulators accumulators;
    const Index end = CAUSAL && keys > i0 + BM ? i0 + BM : keys;
#pragma unroll 1
    for (Index j0 = 0; j0 < end; j0 += BN) {
        multiply(block.in.scores, q, k, i0, j0, 0, width);
        accumulators.begin_loads(block.in, v, c0, j0, end);
        weigh(block, scores, i0, j0, length, end);
        accumulators.wait();
        __syncthreads();
        accumulators.rescale(block.correction);
        accumulators.accumulate(block.in, v, c0, j0, end);
        __syncthreads();
    }
    __syncthreads();
    accumulators.copy_to(block.out);
    // Without a mask every row sees a key, if there is one. The weights of a row that sees none are zeros, with
    // which values that are not finite still make NaN.
#pragma unroll 1
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        const Acc denominator = block.denominator[r];
        const bool sees_no_key = CAUSAL || MASK != NONE ? denominator == 0 : keys == 0;
        block.denominator[r] = sees_no_key ? Acc(1) : inverse(denominator);
    }
    __syncthreads();
}
