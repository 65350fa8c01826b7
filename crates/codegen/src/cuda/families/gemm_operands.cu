// Operands of a product. Both are read by line and k: a line is a row of the left or a column of the
// right operand. What lies outside is 0.

// Element (line, k) at p + line * line_stride + k * k_stride.
struct Strided {
    const Elem* p;
    Index lines, line_stride, k_stride;
    struct Line { const Elem* p; };
    __device__ __forceinline__ Line line(Index i) const { return {i < lines ? p + i * line_stride : nullptr}; }
    __device__ __forceinline__ Elem at(Line l, Index k) const { return l.p ? l.p[k * k_stride] : Elem(0); }
    // Where neighbours of 16 bytes begin; null outside.
    __device__ __forceinline__ const Elem* run(Line l, Index k) const { return l.p ? l.p + k * k_stride : nullptr; }
};
