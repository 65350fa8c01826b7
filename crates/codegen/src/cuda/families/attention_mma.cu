// Weights times values by tensor cores: each warp owns WM rows and WV columns of the result. Values are copied to
// shared memory while scores become weights.

constexpr int WV = BV / (BN / WN);
static_assert(WV % 16 == 0 && BN % BK == 0, "warps own whole matrices");

struct Weighted {
    Shared scores;
    Stage<BM, true> weights[BN / BK];
    Stage<BV, V_ALONG_K> values[BN / BK];
    __device__ __forceinline__ void set_weight(int row, int column, Acc weight) { *weights[column / BK].place(row, column % BK) = store(weight); }
};

struct Accumulators {
    float acc[WM / 16][WV / 8][4] = {};
    __device__ __forceinline__ int row() const { return threadIdx.x / 32 / (BN / WN) * WM; }
    __device__ __forceinline__ int column() const { return threadIdx.x / 32 % (BN / WN) * WV; }
    // The row and column of a thread's x-th accumulator in a 16 x 8 matrix.
    __device__ __forceinline__ static int row_of(int x) { return threadIdx.x % 32 / 4 + x / 2 * 8; }
    __device__ __forceinline__ static int column_of(int x) { return threadIdx.x % 4 * 2 + x % 2; }
    __device__ __forceinline__ void rescale(const Acc* factors) {
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WV / 8; j++)
#pragma unroll
                for (int x = 0; x < 4; x++) acc[i][j][x] *= factors[row() + i * 16 + row_of(x)];
    }
    template <class V> __device__ __forceinline__ void begin_loads(Weighted& to, const V& v, Index c0, Index j0, Index end) {
        const Reader<BV, V_ALONG_K, V_VECTOR, V_WHOLE, V> reader(v, c0);
#pragma unroll 1
        for (int x = 0; x < BN / BK; x++) reader.read(to.values[x], v, c0, j0 + x * BK, end);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
    template <class V> __device__ __forceinline__ void accumulate(Weighted& from, const V&, Index, Index, Index) {
        const Matrices<Stage<BM, true>, WM, false> weights(row());
        const Matrices<Stage<BV, V_ALONG_K>, WV, true> values(column());
#pragma unroll 1
        for (int x = 0; x < BN / BK; x++) add_products(acc, from.weights[x], from.values[x], weights, values);
    }
    __device__ __forceinline__ void copy_to(Acc (&out)[BM][BV + 1]) const {
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < WV / 8; j++)
#pragma unroll
                for (int x = 0; x < 4; x++) out[row() + i * 16 + row_of(x)][column() + j * 8 + column_of(x)] = acc[i][j][x];
    }
};
