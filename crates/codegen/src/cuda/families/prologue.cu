// Operands that are computed: `make` returns the element at a position.

// A position, with the operators of a pointer.
template <class Make> struct Position {
    const Make& make;
    Index at;
    __device__ __forceinline__ Position operator+(Index i) const { return {make, at + i}; }
    __device__ __forceinline__ Elem operator[](Index i) const { return make(at + i); }
};

// Element (line, k) is at position offset + line * line_stride + k * k_stride.
template <class Make> struct Prologue {
    static constexpr bool in_memory = false;
    const Make& make;
    Index offset, lines, line_stride, k_stride;
    struct Line { Index at; };
    __device__ __forceinline__ Line line(Index i) const { return {i < lines ? offset + i * line_stride : -1}; }
    __device__ __forceinline__ Elem at(Line l, Index k) const { return l.at < 0 ? Elem(0) : make(l.at + k * k_stride); }
};
