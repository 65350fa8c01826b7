// Winograd's convolutions F(M x M, 3 x 3) with the matrices of Lavin and Gray (arXiv:1509.09308): a tile of A x A
// inputs, A = M + 2, gives M x M results, Y = T [(G g G') o (B d B')] T', where o multiplies elements.

constexpr int A = M + 2;

#if WINOGRAD == 2
#define WINOGRAD_B {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}}
#define WINOGRAD_G {{1, 0, 0}, {.5f, .5f, .5f}, {.5f, -.5f, .5f}, {0, 0, 1}}
#define WINOGRAD_T {{1, 1, 1, 0}, {0, 1, -1, -1}}
#else
#define WINOGRAD_B {{4, 0, -5, 0, 1, 0}, {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0}, {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}}
#define WINOGRAD_G {{1.f / 4, 0, 0}, {-1.f / 6, -1.f / 6, -1.f / 6}, {-1.f / 6, 1.f / 6, -1.f / 6}, {1.f / 24, 1.f / 12, 1.f / 6}, {1.f / 24, -1.f / 12, 1.f / 6}, {0, 0, 1}}
#define WINOGRAD_T {{1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}}
#endif

// Computes y = m x m'. Loops are unrolled, so the zeros of m cost nothing.
template <int R, int C>
__device__ __forceinline__ void multiply_both_sides(const float (&m)[R][C], const float (&x)[C][C], float (&y)[R][R]) {
    float half[R][C];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
            half[r][c] = 0;
#pragma unroll
            for (int i = 0; i < C; i++)
                if (m[r][i] != 0) half[r][c] += m[r][i] * x[i][c];
        }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int q = 0; q < R; q++) {
            y[r][q] = 0;
#pragma unroll
            for (int i = 0; i < C; i++)
                if (m[q][i] != 0) y[r][q] += m[q][i] * half[r][i];
        }
}

// Stores the elements of a transformed tile, `step` apart.
__device__ __forceinline__ void store_strided(const float (&x)[A][A], float* to, Index step) {
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int j = 0; j < A; j++) to[(i * A + j) * step] = x[i][j];
}

// Transforms the tile of an image of `rows` x `columns` that begins at (row, column); beyond the edges are zeros.
__device__ __forceinline__ void transform_inputs(const float* image, Index rows, Index columns, Index row, Index column, float* to, Index step) {
    constexpr float b[A][A] = WINOGRAD_B;
    float x[A][A], y[A][A];
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int j = 0; j < A; j++) {
            const Index r = row + i, c = column + j;
            x[i][j] = r >= 0 && r < rows && c >= 0 && c < columns ? image[r * columns + c] : 0;
        }
    multiply_both_sides(b, x, y);
    store_strided(y, to, step);
}

// Transforms a filter of 3 x 3.
__device__ __forceinline__ void transform_weights(const float* filter, float* to, Index step) {
    constexpr float g[A][3] = WINOGRAD_G;
    float x[3][3], y[A][A];
#pragma unroll
    for (int i = 0; i < 3; i++)
#pragma unroll
        for (int j = 0; j < 3; j++) x[i][j] = filter[i * 3 + j];
    multiply_both_sides(g, x, y);
    store_strided(y, to, step);
}

// Computes the results of a tile from its products.
__device__ __forceinline__ void transform_results(const float* from, Index step, float (&y)[M][M]) {
    constexpr float t[M][A] = WINOGRAD_T;
    float x[A][A];
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int j = 0; j < A; j++) x[i][j] = from[(i * A + j) * step];
    multiply_both_sides(t, x, y);
}

#undef WINOGRAD_B
#undef WINOGRAD_G
#undef WINOGRAD_T
#undef WINOGRAD
