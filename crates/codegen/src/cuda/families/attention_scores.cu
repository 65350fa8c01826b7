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

// A quotient of normal numbers: rounding it to the last bit would be a tenth of the compilation.
__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double inverse(double x) { return 1.0 / x; }
