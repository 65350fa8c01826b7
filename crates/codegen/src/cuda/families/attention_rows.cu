// The numbers of a whole row that gradients of scores need: its max, the factor that normalises its weights, and the
// sum of its weights times their gradients. The keys are walked as in the forward pass, BN at a time.

struct Block {
    Shared in;
    Acc products[BM][BN + 1];
    Acc running_max[BM], denominator[BM], share[BM];
};

// Adds keys j0 <= j < end to what is known of the rows. A warp takes whole rows.
__device__ __forceinline__ void add_keys(Block& block, const Scores& scores, Index i0, Index j0, Index length, Index end) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < BM; r += THREADS / 32) {
        const Index i = i0 + r;
        const Index seen = CAUSAL && i + 1 < end ? i + 1 : end, last = i < length ? seen : 0;
        const Acc before = block.running_max[r];
        Acc x[BN / 32];
        const Acc running_max = best_score(x, block.products[r], scores, i, j0, last, before);
        // While no key was seen, every weight is exp(-inf).
        const Acc base = running_max == Acc(-kiln_inf) ? Acc(0) : running_max;
        Acc sum = 0, share = 0;
#pragma unroll
        for (int c = 0; c < BN / 32; c++) {
            const Acc weight = exp(x[c] - base);
            sum += weight;
            const Index j = j0 + c * 32 + lane;
            const Acc of_weight = block.in.out[r][c * 32 + lane];
            share = fma(weight, j < last ? scores.dropped(of_weight, i, j) : of_weight, share);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
            share += __shfl_xor_sync(0xffffffffu, share, step);
        }
        __syncwarp();
        if (lane == 0) {
            const Acc correction = exp(before - base);
            block.running_max[r] = running_max;
            block.denominator[r] = block.denominator[r] * correction + sum;
            block.share[r] = block.share[r] * correction + share;
        }
    }
}

// Writes three numbers a row. `g` are the gradients of the result.
template <class Q, class K, class G, class V>
__device__ __forceinline__ void sum_rows(Block& block, const Q& q, const K& k, const G& g, const V& v, const Scores& scores, Acc* rows, Index i0, Index length, Index keys, Index width, Index columns) {
#pragma unroll 1
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        block.running_max[r] = -kiln_inf;
        block.denominator[r] = block.share[r] = 0;
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
        const bool blind = CAUSAL || MASK != NONE ? denominator == 0 : keys == 0;
        const Acc part = blind ? Acc(1) : inverse(denominator);
        Acc* to = rows + (i0 + r) * 3;
        to[0] = running_max == Acc(-kiln_inf) ? Acc(0) : running_max;
        to[1] = part;
        to[2] = block.share[r] * part;
    }
}
