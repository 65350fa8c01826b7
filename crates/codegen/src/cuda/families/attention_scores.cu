// Scores of a matrix: products of queries and keys, scaled and masked.

struct Scores {
    Acc scale;
    const MaskElem* mask;
    Index row, column;
    __device__ __forceinline__ Acc at(Acc product, Index i, Index j) const {
        Acc x = product * scale;
        if constexpr (MASK == KEEPS) x = mask[i * row + j * column] != 0 ? x : Acc(-kiln_inf);
        if constexpr (MASK == ADDS) x += load_mask(mask[i * row + j * column]);
        return x;
    }
};

// A quotient of normal numbers: rounding it to the last bit would be a tenth of the compilation.
__device__ __forceinline__ float inverse(float x) { return __fdividef(1.0f, x); }
__device__ __forceinline__ double inverse(double x) { return 1.0 / x; }
