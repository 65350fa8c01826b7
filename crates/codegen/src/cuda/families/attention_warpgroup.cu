// A block's BM rows and BV columns of attention by wgmma, with an online softmax (see attention.cu). Each warpgroup that
// multiplies keeps 64 rows of scores, weights and accumulators in registers. A tile of queries stays in shared memory,
// tiles of BN keys and of their values come in turn. Exponents are to the base 2.

constexpr int SUMS = BV / 2, SCORES = BN / 2;

struct alignas(1024) Shared {
    Elem queries[BM * BK], in[STAGES][BN * (BK > BV ? BK : BV)];
    Passage passages[WARPS];
    Barriers<1> once;
    Barriers<STAGES> barriers;
};

template <class CopyQ, class CopyK, class CopyV>
__device__ __forceinline__ void copy_tile(Shared& shared, Ring<1>& once, Ring<STAGES>& ring, const CopyQ& copy_q, const CopyK& copy_k, const CopyV& copy_v, int i0, int end) {
    copy_lines<BM, BK, Q_ALONG_K>(shared.queries, claim<sizeof(shared.queries)>(shared.once, once), copy_q, i0, 0);
    once.next();
#pragma unroll 1
    for (int j0 = 0; j0 < end; j0 += BN) {
        const unsigned keys = claim<BN * BK * sizeof(Elem)>(shared.barriers, ring);
        copy_lines<BN, BK, K_ALONG_K>(shared.in[ring.stage], keys, copy_k, j0, 0);
        ring.next();
        const unsigned values = claim<BN * BV * sizeof(Elem)>(shared.barriers, ring);
        copy_lines<BV, BN, V_ALONG_K>(shared.in[ring.stage], values, copy_v, 0, j0);
        ring.next();
    }
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The sums and scores of a thread are those of two rows, the second 8 below the first.
__device__ __forceinline__ int row_of(int x) { return x / 2 % 2; }
__device__ __forceinline__ int column_of(int x) { return x / 4 * 8 + threadIdx.x % 4 * 2 + x % 2; }
__device__ __forceinline__ float across_row(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }

// Scales and masks products, where that is not left to `weigh`. Keys from `end` on have no weight.
__device__ __forceinline__ void apply_mask(Acc (&x)[SCORES], const Scores& scores, Index row, Index j0, Index length, Index end) {
#pragma unroll
    for (int c = 0; c < SCORES; c++) {
        const Index i = row + row_of(c) * 8, j = j0 + column_of(c);
        const bool seen = i < length && j < end && (!CAUSAL || j <= i);
        x[c] = !seen ? Acc(-kiln_inf) : SCALED ? scores.at(x[c], i, j) : x[c];
    }
}

// Makes the scores of a thread's rows weights, and corrects what was accumulated before.
__device__ __forceinline__ void weigh(Acc (&x)[SCORES], Acc (&running_max)[2], Acc (&denominator)[2], Acc (&sums)[SUMS]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Acc best = running_max[r], sum = 0;
#pragma unroll
        for (int c = 0; c < SCORES; c++)
            if (row_of(c) == r) best = fmaxf(best, x[c]);
        best = fmaxf(best, across_row(best, 1));
        best = fmaxf(best, across_row(best, 2));
        // While no key was seen, every weight is 2^-inf.
        const Acc base = best == -kiln_inf ? Acc(0) : best, shift = base * FACTOR;
        const Acc correction = power_of_2((running_max[r] - base) * FACTOR);
        running_max[r] = best;
#pragma unroll
        for (int c = 0; c < SCORES; c++)
            if (row_of(c) == r) sum += x[c] = power_of_2(fmaf(x[c], FACTOR, -shift));
        denominator[r] = denominator[r] * correction + sum;
#pragma unroll
        for (int c = 0; c < SUMS; c++)
            if (row_of(c) == r) sums[c] *= correction;
    }
}

// Leaves a tile's result in registers. Products with values are on their way while those with the next keys begin.
__device__ __forceinline__ void attend(Shared& shared, Ring<1>& once, Ring<STAGES>& ring, Acc (&sums)[SUMS], const Scores& scores, Index i0, Index length, Index keys, Index end) {
    const int line = (threadIdx.x / 128 - 1) * 64;
    const Index row = i0 + line + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    Acc running_max[2] = {-kiln_inf, -kiln_inf}, denominator[2] = {0, 0};
    int before = 0;
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
    const unsigned q = shared_address(shared.queries);
    wait(shared.once.full[0], once.parity);
#pragma unroll 1
    for (Index j0 = 0; j0 < end; j0 += BN) {
        Acc x[SCORES];
        wait(shared.barriers.full[ring.stage], ring.parity);
        const unsigned k = shared_address(shared.in[ring.stage]);
        begin_products(x);
#pragma unroll
        for (int term = 0; term < BK; term += TERMS) {
            const auto a = matrix<BM, BK, Q_ALONG_K>(q, line, term), b = matrix<BN, BK, K_ALONG_K>(k, 0, term);
            if (term == 0) multiply_keys<0>(x, a, b);
            else multiply_keys<1>(x, a, b);
        }
        commit_products();
        finish_products<0>(x, sums);
        if (j0 > 0) release(shared.barriers, before);
        release(shared.barriers, ring.stage);
        ring.next();
        if (SCALED || TAILS && j0 + BN > keys || CAUSAL && j0 + BN > i0 + line) apply_mask(x, scores, row, j0, length, keys);
        weigh(x, running_max, denominator, sums);
#pragma unroll
        for (int c = 0; DROPS && c < SCORES; c++) x[c] = scores.dropped(x[c], row + row_of(c) * 8, j0 + column_of(c));
        unsigned weights[BN / TERMS][4];
#pragma unroll
        for (int c = 0; c < SCORES; c += 2) weights[c / 8][c / 2 % 4] = narrow({x[c], x[c + 1]});
        wait(shared.barriers.full[ring.stage], ring.parity);
        const unsigned v = shared_address(shared.in[ring.stage]);
        begin_products(sums, weights);
#pragma unroll
        for (int term = 0; term < BN; term += TERMS)
            multiply_values<1>(sums, weights[term / TERMS], matrix<BV, BN, V_ALONG_K>(v, 0, term));
        commit_products();
        before = ring.stage;
        ring.next();
    }
    finish_products<0>(sums);
    if (end > 0) release(shared.barriers, before);
    release(shared.once, 0);
    once.next();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Acc sum = denominator[r];
        sum += across_row(sum, 1);
        sum += across_row(sum, 2);
        // As in attention.cu, a row that sees no key has weights of zero.
        const bool blind = CAUSAL || MASK != NONE ? sum == 0 : keys == 0;
        const Acc factor = blind ? Acc(1) : inverse(sum);
#pragma unroll
        for (int c = 0; c < SUMS; c++)
            if (row_of(c) == r) sums[c] *= factor;
    }
}
