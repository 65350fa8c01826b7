// Products of f16 or bf16 in stages of shared memory, by tensor cores.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const Elem* p, bool transposed) {
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the products along BK to a warp's WM x 8 N sums, whose corner is (wi, wj).
template <int N, class A, class B>
__device__ __forceinline__ void add_products(float (&sum)[WM / 16][N][4], A& a, B& b, int wi, int wj) {
    const int part = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
        unsigned x[WM / 16][4], y[N / 2][4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
            load_matrices(x[i], a.place(wi + i * 16 + part % 2 * 8 + (A::along_k ? row : 0), k + part / 2 * 8 + (A::along_k ? 0 : row)), !A::along_k);
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            load_matrices(y[j], b.place(wj + j * 16 + part / 2 * 8 + (B::along_k ? row : 0), k + part % 2 * 8 + (B::along_k ? 0 : row)), !B::along_k);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < N; j++) mma(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}
