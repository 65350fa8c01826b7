// Products of f32 in stages, by tensor cores, of operands rounded to TF32. With SPLIT, operands are sums of two TF32
// numbers: the product of the low parts is omitted, and f32 additions accumulate sums of eight products, since tensor
// cores truncate.

struct Part { unsigned high, low; };

__device__ __forceinline__ unsigned tf32(float x) {
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ Part split(float x) {
    const unsigned high = tf32(x);
    return {high, SPLIT ? tf32(x - __uint_as_float(high)) : 0};
}

#define MMA(c, a, b, A_PART, B_PART) \
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                 : "r"(a[0].A_PART), "r"(a[1].A_PART), "r"(a[2].A_PART), "r"(a[3].A_PART), "r"(b[0].B_PART), "r"(b[1].B_PART))

// Adds the products of 16 x 8 and 8 x 8 matrices.
__device__ __forceinline__ void mma(float (&sum)[4], const Part (&a)[4], const Part (&b)[2]) {
    if constexpr (SPLIT) {
        float partial[4] = {};
        MMA(partial, a, b, low, high);
        MMA(partial, a, b, high, low);
        MMA(partial, a, b, high, high);
#pragma unroll
        for (int x = 0; x < 4; x++) sum[x] += partial[x];
    } else {
        MMA(sum, a, b, high, high);
    }
}
#undef MMA

// The first line of a warp in a stage.
template <class Stage, int LINES, bool RIGHT> struct Matrices {
    int line0;
    __device__ __forceinline__ explicit Matrices(int line0) : line0(line0) {}
};

// Adds the products along BK to a warp's WM x 8 N accumulators.
template <int N, class A, class B, class AMatrices, class BMatrices>
__device__ __forceinline__ void add_products(float (&sum)[WM / 16][N][4], A& a, B& b, const AMatrices& a_matrices, const BMatrices& b_matrices) {
    const int wi = a_matrices.line0, wj = b_matrices.line0;
    const int row = threadIdx.x % 32 / 4, column = threadIdx.x % 4;
#pragma unroll SPLIT ? 1 : 2 // more costs registers
    for (int k = 0; k < BK; k += 8) {
        Part x[WM / 16][4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int p = 0; p < 4; p++) x[i][p] = split(*a.place(wi + i * 16 + row + p % 2 * 8, k + column + p / 2 * 4));
#pragma unroll
        for (int j = 0; j < N; j++) {
            Part y[2];
#pragma unroll
            for (int p = 0; p < 2; p++) y[p] = split(*b.place(wj + j * 8 + row, k + column + p * 4));
#pragma unroll
            for (int i = 0; i < WM / 16; i++) mma(sum[i][j], x[i], y);
        }
    }
}
