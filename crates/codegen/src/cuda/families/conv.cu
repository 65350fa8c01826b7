// A number taken apart: positions in extents, and what is left of it, the image or the channel.
struct Parts { Index outer, at[AXES]; };
__device__ __forceinline__ Parts apart(Index i, const Index (&extents)[AXES]) {
    Parts parts;
#pragma unroll
    for (int d = AXES - 1; d >= 0; d--) {
        parts.at[d] = i % extents[d];
        i /= extents[d];
    }
    parts.outer = i;
    return parts;
}
