// Products of f16, bf16 or bytes in stages, by tensor cores.

// The terms of an instruction.
constexpr int INSTRUCTION_K = 32 / sizeof(Elem);

// The byte offsets in a stage of the rows that a thread addresses in a warp's 16 x INSTRUCTION_K matrices, from line `line0`
// on. The permutation of chunks repeats every 16 rows.
template <class Stage, int LINES, bool RIGHT> struct Matrices {
    static constexpr bool along_k = Stage::along_k;
    unsigned offsets[along_k ? BK / INSTRUCTION_K : LINES / 16];
    __device__ __forceinline__ explicit Matrices(int line0) {
        const int part = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
        const int below = (RIGHT ? part / 2 : part % 2) * 8, behind = (RIGHT ? part % 2 : part / 2) * (INSTRUCTION_K / 2);
#pragma unroll
        for (int x = 0; x < (int)(sizeof(offsets) / sizeof(*offsets)); x++) {
            const int line = line0 + below + (along_k ? row : x * 16), k = behind + (along_k ? x * INSTRUCTION_K : row);
            offsets[x] = Stage::offset(line, k) * (int)sizeof(Elem);
            asm("" : "+r"(offsets[x])); // kept, not recomputed
        }
    }
    // Loads the matrix at line 16 * i and term INSTRUCTION_K * j.
    __device__ __forceinline__ void load(unsigned (&r)[4], unsigned stage, int i, int j) const {
        unsigned p = stage + offsets[along_k ? j : i];
        asm("" : "+r"(p)); // the rest becomes the instruction's immediate offset
        p += (along_k ? i : j) * 16 * Stage::ROW * (int)sizeof(Elem);
        if constexpr (along_k)
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
        else
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(p) : "memory");
    }
};

__device__ __forceinline__ void mma(Acc (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned." MMA " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : MMA_SUM(c[0]), MMA_SUM(c[1]), MMA_SUM(c[2]), MMA_SUM(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the products along BK to a warp's WM x 8 N accumulators.
template <int N, class A, class B, class AMatrices, class BMatrices>
__device__ __forceinline__ void add_products(Acc (&sum)[WM / 16][N][4], A& a, B& b, const AMatrices& a_matrices, const BMatrices& b_matrices) {
    const unsigned a_at = shared_address(a.at), b_at = shared_address(b.at);
#pragma unroll
    for (int k = 0; k < BK / INSTRUCTION_K; k++) {
        unsigned x[WM / 16][4], y[N / 2][4];
#pragma unroll
        for (int i = 0; i < WM / 16; i++) a_matrices.load(x[i], a_at, i, k);
#pragma unroll
        for (int j = 0; j < N / 2; j++) b_matrices.load(y[j], b_at, j, k);
#pragma unroll
        for (int i = 0; i < WM / 16; i++)
#pragma unroll
            for (int j = 0; j < N; j++) mma(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
}
