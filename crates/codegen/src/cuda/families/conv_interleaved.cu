// Element (line, k) at p + line * inner + k / inner * outer + k % inner: a contiguous tensor
// [k / inner, line, k % inner], or part of one.
struct Interleaved {
    const Elem* p;
    Index lines, inner, outer;
    struct Line { const Elem* p; };
    __device__ __forceinline__ Line line(Index i) const { return {i < lines ? p + i * inner : nullptr}; }
    __device__ __forceinline__ Elem at(Line l, Index k) const { return l.p ? l.p[k / inner * outer + k % inner] : Elem(0); }
};
