// Scores of a matrix: products of queries and keys, scaled and masked.

struct Scores {
    Acc scale;
    const MaskElem* mask;
    Index row, column;
    // Of the random numbers of the matrix, which has so many keys.
    long long seed, position, keys;
    __device__ __forceinline__ Acc at(Acc product, Index i, Index j) const {
        Acc x = product * scale;
        if constexpr (MASK == KEEPS) x = mask[i * row + j * column] != 0 ? x : Acc(-kiln_inf);
        if constexpr (MASK == ADDS) x += load_mask(mask[i * row + j * column]);
        return x;
    }
    // Drops a weight, or a gradient of one.
    __device__ __forceinline__ Acc dropped(Acc x, Index i, Index j) const {
        if constexpr (DROPS) return kiln_uniform_f32(kiln_random(position + i * keys + j, seed, 4u)) >= LEAST ? x * KEPT : x * Acc(0);
        return x;
    }
};

// The scores of row i and keys j0 <= j < last, spread over a warp. Returns the largest of these and of an earlier one.
// Later keys have no weight.
__device__ __forceinline__ Acc best_score(Acc (&x)[BN / 32], const Acc* products, const Scores& scores, Index i, Index j0, Index last, Acc best) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < BN / 32; c++) {
        const Index j = j0 + c * 32 + lane;
        x[c] = j < last ? scores.at(products[c * 32 + lane], i, j) : Acc(-kiln_inf);
        best = fmax(best, x[c]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) best = fmax(best, __shfl_xor_sync(0xffffffffu, best, step));
    return best;
}

// A quotient of normal numbers: rounding it to the last bit would be a tenth of the compilation.
__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double inverse(double x) { return 1.0 / x; }
