// A block's tile by multiply-adds. Each thread has TM x TN accumulators, in runs spread over the tile to avoid bank
// conflicts.

// The rows and columns of a block's threads, and the columns of a warp's: at most 8 if possible, which read 128 bytes.
constexpr int DOWN = BM / TM, ACROSS = BN / TN;
constexpr int MIN_WIDE = DOWN < 32 ? 32 / DOWN : 1, MAX_WIDE = ACROSS < 8 ? ACROSS : 8;
constexpr int WIDE = MIN_WIDE > MAX_WIDE ? MIN_WIDE : MAX_WIDE;

// The COUNT lines of a thread, one of OWNERS, SIDE_BY_SIDE terms of which are loaded at a time.
template <class Stage, int COUNT, int OWNERS> struct Lines {
    static constexpr int RUN = Stage::along_k ? 1 : COUNT < SIDE_BY_SIDE ? COUNT : SIDE_BY_SIDE;
    int owner;
    // Offsets of the first line's chunks in a stage. The permutation of chunks repeats every 8 lines.
    int at[Stage::along_k ? BK / SIDE_BY_SIDE : 1];
    __device__ __forceinline__ explicit Lines(int owner) : owner(owner) {
#pragma unroll
        for (int x = 0; x < (int)(sizeof(at) / sizeof(*at)); x++) {
            at[x] = Stage::offset(line(0), x * SIDE_BY_SIDE);
            asm("" : "+r"(at[x])); // kept, not computed again
        }
    }
    __device__ __forceinline__ int line(int i) const { return (i / RUN * OWNERS + owner) * RUN + i % RUN; }
    // Loads lines i0 to i0 + N.
    template <int N> __device__ __forceinline__ void load(Elem (&x)[N][SIDE_BY_SIDE], const Stage& stage, int i0, int k0) const {
#pragma unroll
        for (int i = 0; i < N; i += RUN) {
            const Elem* p = stage.at + (i0 + i) * OWNERS * (Stage::along_k ? BK : 1);
            if constexpr (Stage::along_k) {
                p = OWNERS % 8 == 0 ? p + at[k0 / SIDE_BY_SIDE] : stage.at + Stage::offset(line(i0 + i), k0);
                const auto run = kiln_load<SIDE_BY_SIDE>(p);
#pragma unroll
                for (int s = 0; s < SIDE_BY_SIDE; s++) x[i][s] = run.v[s];
            } else {
#pragma unroll
                for (int k = 0; k < SIDE_BY_SIDE; k++) {
                    const auto run = kiln_load<RUN>(p + at[0] + (k0 + k) * Stage::ROW);
#pragma unroll
                    for (int s = 0; s < RUN; s++) x[i + s][k] = run.v[s];
                }
            }
        }
    }
};

// Computes the sums over first <= k < end in shared.out.
template <class A, class B>
__device__ __forceinline__ void multiply(Shared& shared, const A& a, const B& b, Index i0, Index j0, Index first, Index end) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Lines<Stage<BM, A_ALONG_K>, TM, DOWN> rows(warp / (ACROSS / WIDE) * (32 / WIDE) + lane / WIDE);
    const Lines<Stage<BN, B_ALONG_K>, TN, ACROSS> columns(warp % (ACROSS / WIDE) * WIDE + lane % WIDE);
    constexpr int RUN = columns.RUN;
    Acc sum[TM][TN] = {};
    each_stage(shared, a, b, i0, j0, first, end, [&](Stages& in) {
#pragma unroll
        for (int k = 0; k < BK; k += SIDE_BY_SIDE) {
            Elem x[TM][SIDE_BY_SIDE];
            rows.load(x, in.a, 0, k);
#pragma unroll
            for (int j0 = 0; j0 < TN; j0 += RUN) {
                Elem y[RUN][SIDE_BY_SIDE];
                columns.load(y, in.b, j0, k);
#pragma unroll
                for (int s = 0; s < SIDE_BY_SIDE; s++)
#pragma unroll
                    for (int i = 0; i < TM; i++)
#pragma unroll
                        for (int j = 0; j < RUN; j++) sum[i][j0 + j] = multiply_add(x[i][s], y[j][s], sum[i][j0 + j]);
            }
        }
    });
#pragma unroll
    for (int i = 0; i < TM; i++)
#pragma unroll
        for (int j = 0; j < TN; j += RUN) {
            kiln_vec<Acc, RUN> run;
#pragma unroll
            for (int s = 0; s < RUN; s++) run.v[s] = sum[i][j + s];
            kiln_store(&shared.out[rows.line(i)][out_column(rows.line(i), columns.line(j))], run);
        }
    __syncthreads();
}
