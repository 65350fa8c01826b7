// Operands of a contraction. A line is a row of the left or a column of the right operand. Elements outside are 0.

// The address of contiguous elements, if they exist.
struct Run {
    const Elem* p;
    bool exists;
};

// Element (line, k) at p + line * line_stride + k * k_stride.
struct Strided {
    static constexpr bool in_memory = true, bounded = false;
    const Elem* p;
    Index lines, line_stride, k_stride;
    typedef Run Line;
    __device__ __forceinline__ Line line(Index i) const {
        Line line = {p + i * line_stride, i < lines};
        asm("" : "+l"(line.p)); // kept, not recomputed
        return line;
    }
    __device__ __forceinline__ Elem at(Line l, Index k) const { return l.exists ? l.p[k * k_stride] : Elem(0); }
    // The run `behind` terms after k: at a constant distance from an address that is computed once.
    __device__ __forceinline__ Run run(Line l, Index k, int behind = 0) const { return {l.p + k * k_stride + behind * k_stride, l.exists}; }
    __device__ __forceinline__ bool exists(Line l, Index) const { return l.exists; }
};

// The contribution of a line or a term to an element's offset, and to the coordinates that have bounds.
template <int BOUNDS> struct Parts {
    Index at, bounds[BOUNDS > 0 ? BOUNDS : 1];
    bool exists;
};

template <class Place> constexpr bool is_pointer = false;
template <> constexpr bool is_pointer<const Elem*> = true;

// Elements at the sums of the contributions of a line and a term.
template <class Place, class Lines, class Terms, int BOUNDS> struct Gathered {
    static constexpr bool in_memory = is_pointer<Place>, bounded = BOUNDS > 0;
    Place p;
    const Lines& parts_of_line;
    const Terms& parts_of_term;
    Index lines, extents[BOUNDS > 0 ? BOUNDS : 1];
    typedef Parts<BOUNDS> Line;
    __device__ __forceinline__ Line line(Index i) const {
        Line l = parts_of_line(i);
        l.exists = i < lines;
        return l;
    }
    __device__ __forceinline__ bool find(const Line& l, Index k, Index& at) const {
        const Parts<BOUNDS> term = parts_of_term(k);
        bool exists = l.exists;
#pragma unroll
        for (int b = 0; b < BOUNDS; b++) exists = exists && (UIndex)(l.bounds[b] + term.bounds[b]) < (UIndex)extents[b];
        at = l.at + term.at;
        return exists;
    }
    __device__ __forceinline__ bool exists(const Line& l, Index k) const {
        Index at;
        return find(l, k, at);
    }
    __device__ __forceinline__ Elem at(const Line& l, Index k) const {
        Index at;
        return find(l, k, at) ? p[at] : Elem(0);
    }
    __device__ __forceinline__ Run run(const Line& l, Index k, int behind = 0) const {
        Index at;
        const bool exists = find(l, k + behind, at);
        return {p + at, exists};
    }
};
