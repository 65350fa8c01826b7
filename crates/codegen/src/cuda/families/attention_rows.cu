// What the gradients of scores take of a whole row: its best score, what its weights are multiplied by, and the
// sum of its weights times their gradients. The keys are walked as in the forward pass, BN at a time; what was
// summed before a better score came fades.

struct Block {
    Shared in;
    Acc products[BM][BN + 1];
    Acc best[BM], total[BM], share[BM];
};

// Adds keys j0 <= j < end to what is known of the rows. A warp takes whole rows.
__device__ __forceinline__ void add_keys(Block& block, const Scores& scores, Index i0, Index j0, Index length, Index end) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < BM; r += THREADS / 32) {
        const Index i = i0 + r;
        const Index seen = CAUSAL && i + 1 < end ? i + 1 : end, last = i < length ? seen : 0;
        const Acc before = block.best[r];
        Acc x[BN / 32];
        const Acc best = best_score(x, block.products[r], scores, i, j0, last, before);
        // While no key was seen, every weight is exp(-inf).
        const Acc base = best == Acc(-kiln_inf) ? Acc(0) : best;
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
            const Acc fade = exp(before - base);
            block.best[r] = best;
            block.total[r] = block.total[r] * fade + sum;
            block.share[r] = block.share[r] * fade + share;
        }
    }
}

// Writes three numbers a row. `g` are the gradients of the result.
template <class Q, class K, class G, class V>
__device__ __forceinline__ void sum_rows(Block& block, const Q& q, const K& k, const G& g, const V& v, const Scores& scores, Acc* rows, Index i0, Index length, Index keys, Index width, Index columns) {
#pragma unroll 1
    for (int r = threadIdx.x; r < BM; r += THREADS) {
        block.best[r] = -kiln_inf;
        block.total[r] = block.share[r] = 0;
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
        const Acc best = block.best[r], total = block.total[r];
        const bool blind = CAUSAL || MASK != NONE ? total == 0 : keys == 0;
        const Acc part = blind ? Acc(1) : inverse(total);
        Acc* to = rows + (i0 + r) * 3;
        to[0] = best == Acc(-kiln_inf) ? Acc(0) : best;
        to[1] = part;
        to[2] = block.share[r] * part;
    }
}
