// Scores of a matrix: products of queries and keys, scaled and masked.

struct Scores {
    Acc scale;
    const MaskElem* mask;
    Index row, column;
    // The seed and position of the matrix's random numbers, and its number of keys.
    long long seed, position, keys;
    __device__ __forceinline__ Acc scale_and_mask(Acc product, Index i, Index j) const {
        Acc x = product * scale;
        if constexpr (MASK == KEEPS) x = mask[i * row + j * column] != 0 ? x : Acc(-kiln_inf);
        if constexpr (MASK == ADDS) x += load_mask(mask[i * row + j * column]);
        return x;
    }
    // Applies dropout to a weight, or to the gradient of one.
    __device__ __forceinline__ Acc apply_dropout(Acc x, Index i, Index j) const {
        if constexpr (DROPOUT) return kiln_uniform_f32(kiln_random(position + i * keys + j, seed, 4u)) >= DROPOUT_P ? x * DROPOUT_SCALE : x * Acc(0);
        return x;
    }
};

// Computes the scores of row i and keys j0 <= j < last, spread over a warp; those of later keys are -inf. Returns their
// maximum and that of the keys before them.
__device__ __forceinline__ Acc max_score(Acc (&x)[BN / 32], const Acc* products, const Scores& scores, Index i, Index j0, Index last, Acc running_max) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < BN / 32; c++) {
        const Index j = j0 + c * 32 + lane;
        x[c] = j < last ? scores.scale_and_mask(products[c * 32 + lane], i, j) : Acc(-kiln_inf);
        running_max = fmax(running_max, x[c]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) running_max = fmax(running_max, __shfl_xor_sync(0xffffffffu, running_max, step));
    return running_max;
}

// An approximate quotient of normal numbers: correct rounding would be a tenth of the compilation.
__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double inverse(double x) { return 1.0 / x; }
