// Weights times values by fused multiply-adds: each thread owns TM rows and VN columns of the result.
// Weights replace the scores in shared memory, which holds VK rows of values at a time.

constexpr int VK = 8, VN = BV / (BN / TN);
static_assert(VK * BV % THREADS == 0 && BN % VK == 0, "threads load equal parts");

struct Weighted {
    Shared scores;
    Elem values[VK][BV + 4];
    __device__ __forceinline__ void set_weight(int row, int column, Acc weight) { scores.out[row][column] = weight; }
};

struct Accumulators {
    Acc acc[TM][VN] = {};
    __device__ __forceinline__ int row() const { return threadIdx.x / (BN / TN) * TM; }
    __device__ __forceinline__ int column() const { return threadIdx.x % (BN / TN) * VN; }
    __device__ __forceinline__ void rescale(const Acc* factors) {
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < VN; j++) acc[i][j] *= factors[row() + i];
    }
    template <class V> __device__ __forceinline__ void begin_loads(Weighted&, const V&, Index, Index, Index) {}
    __device__ __forceinline__ void wait() {}
    template <class V> __device__ __forceinline__ void accumulate(Weighted& from, const V& v, Index c0, Index j0, Index end) {
#pragma unroll 1
        for (int k0 = 0; k0 < BN && j0 + k0 < end; k0 += VK) {
#pragma unroll
            for (int x = 0; x < VK * BV / THREADS; x++) {
                const int e = threadIdx.x + x * THREADS;
                const Index j = j0 + k0 + e / BV;
                from.values[e / BV][e % BV] = j < end ? v.at(v.line(c0 + e % BV), j) : Elem(0);
            }
            __syncthreads();
#pragma unroll 1 // more costs compile time
            for (int k = 0; k < VK; k++) {
                Acc x[TM], y[VN];
#pragma unroll
                for (int i = 0; i < TM; i++) x[i] = from.scores.out[row() + i][k0 + k];
#pragma unroll
                for (int j = 0; j < VN; j++) y[j] = from.values[k][column() + j];
#pragma unroll
                for (int i = 0; i < TM; i++)
#pragma unroll
                    for (int j = 0; j < VN; j++) acc[i][j] = fma(x[i], y[j], acc[i][j]);
            }
            __syncthreads();
        }
    }
    __device__ __forceinline__ void copy_to(Acc (&out)[BM][BV + 1]) const {
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < VN; j++) out[row() + i][column() + j] = acc[i][j];
    }
};
