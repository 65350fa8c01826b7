// A block's BM rows and BV columns of attention by wgmma, with an online softmax (see attention.cu). Each warpgroup that
// multiplies keeps 64 rows of scores, weights and accumulators in registers. A tile of queries stays in shared memory;
// tiles of BN keys and of their values alternate in the stages. Exponentials have base 2.

constexpr int SUMS = BV / 2, SCORES = BN / 2;

struct alignas(1024) Shared {
    Elem queries[BM * BK], in[STAGES][BN * (BK > BV ? BK : BV)];
    StagingBuffer staging[WARPS];
    Barriers<1> query_barriers;
    Barriers<STAGES> barriers;
};

template <class CopyQ, class CopyK, class CopyV>
__device__ __forceinline__ void copy_tile(Shared& shared, Ring<1>& query_ring, Ring<STAGES>& ring, const CopyQ& copy_q, const CopyK& copy_k, const CopyV& copy_v, int i0, int end) {
    copy_lines<BM, BK, Q_ALONG_K>(shared.queries, acquire<sizeof(shared.queries)>(shared.query_barriers, query_ring), copy_q, i0, 0);
    query_ring.next();
#pragma unroll 1
    for (int j0 = 0; j0 < end; j0 += BN) {
        const unsigned keys = acquire<BN * BK * sizeof(Elem)>(shared.barriers, ring);
        copy_lines<BN, BK, K_ALONG_K>(shared.in[ring.stage], keys, copy_k, j0, 0);
        ring.next();
        const unsigned values = acquire<BN * BV * sizeof(Elem)>(shared.barriers, ring);
        copy_lines<BV, BN, V_ALONG_K>(shared.in[ring.stage], values, copy_v, 0, j0);
        ring.next();
    }
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The row, of a thread's two that are 8 apart, and the column of its x-th accumulator or score.
__device__ __forceinline__ int row_of(int x) { return x / 2 % 2; }
__device__ __forceinline__ int column_of(int x) { return x / 4 * 8 + threadIdx.x % 4 * 2 + x % 2; }
__device__ __forceinline__ float across_row(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }

// Masks products, and scales them if SCALED; else `weigh` scales them. Keys from `end` on have no weight.
__device__ __forceinline__ void apply_mask(Acc (&x)[SCORES], const Scores& scores, Index row, Index j0, Index length, Index end) {
#pragma unroll
    for (int c = 0; c < SCORES; c++) {
        const Index i = row + row_of(c) * 8, j = j0 + column_of(c);
        const bool is_visible = i < length && j < end && (!CAUSAL || j <= i);
        x[c] = !is_visible ? Acc(-kiln_inf) : SCALED ? scores.scale_and_mask(x[c], i, j) : x[c];
    }
}

// Replaces the scores of a thread's rows by weights, and rescales the accumulators.
__device__ __forceinline__ void weigh(Acc (&x)[SCORES], Acc (&running_max)[2], Acc (&denominator)[2], Acc (&sums)[SUMS]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Acc new_max = running_max[r], sum = 0;
#pragma unroll
        for (int c = 0; c < SCORES; c++)
            if (row_of(c) == r) new_max = fmaxf(new_max, x[c]);
        new_max = fmaxf(new_max, across_row(new_max, 1));
        new_max = fmaxf(new_max, across_row(new_max, 2));
        // While no key was seen, every weight is 2^-inf.
        const Acc base = new_max == -kiln_inf ? Acc(0) : new_max, shift = base * FACTOR;
        const Acc correction = power_of_2((running_max[r] - base) * FACTOR);
        running_max[r] = new_max;
#pragma unroll
        for (int c = 0; c < SCORES; c++)
            if (row_of(c) == r) sum += x[c] = power_of_2(fmaf(x[c], FACTOR, -shift));
        denominator[r] = denominator[r] * correction + sum;
#pragma unroll
        for (int c = 0; c < SUMS; c++)
            if (row_of(c) == r) sums[c] *= correction;
    }
}

// Computes a tile's result in registers. Products with values are in flight while those with the next keys begin.
__device__ __forceinline__ void attend(Shared& shared, Ring<1>& query_ring, Ring<STAGES>& ring, Acc (&sums)[SUMS], const Scores& scores, Index i0, Index length, Index keys, Index end) {
    const int line = (threadIdx.x / 128 - 1) * 64;
    const Index row = i0 + line + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    Acc running_max[2] = {-kiln_inf, -kiln_inf}, denominator[2] = {0, 0};
    int previous_stage = 0;
#pragma unroll
    for (int x = 0; x < SUMS; x++) sums[x] = 0;
    const unsigned q = shared_address(shared.queries);
    wait(shared.query_barriers.full[0], query_ring.parity);
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
        if (j0 > 0) release(shared.barriers, previous_stage);
        release(shared.barriers, ring.stage);
        ring.next();
        if (SCALED || TAILS && j0 + BN > keys || CAUSAL && j0 + BN > i0 + line) apply_mask(x, scores, row, j0, length, keys);
        weigh(x, running_max, denominator, sums);
#pragma unroll
        for (int c = 0; DROPOUT && c < SCORES; c++) x[c] = scores.apply_dropout(x[c], row + row_of(c) * 8, j0 + column_of(c));
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
        previous_stage = ring.stage;
        ring.next();
    }
    finish_products<0>(sums);
    if (end > 0) release(shared.barriers, previous_stage);
    release(shared.query_barriers, 0);
    query_ring.next();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        Acc sum = denominator[r];
        sum += across_row(sum, 1);
        sum += across_row(sum, 2);
        // As in attention.cu, a row that sees no key has weights of zero.
        const bool sees_no_key = CAUSAL || MASK != NONE ? sum == 0 : keys == 0;
        const Acc factor = sees_no_key ? Acc(1) : inverse(sum);
#pragma unroll
        for (int c = 0; c < SUMS; c++)
            if (row_of(c) == r) sums[c] *= factor;
    }
}
