// What the places of the result and the taps of the filter meet in x, whose spatial extents are `source`. Places
// are numbered by image and position, taps by position in the filter and channel; so where channels lie side by
// side, neighbouring taps meet neighbours.
template <class Place, bool TAPS_ARE_LINES> struct Patches {
    Place p;
    Index lines, channels, image, channel, step;
    Index source[AXES], places[AXES], taps[AXES], stride[AXES], padding[AXES], dilation[AXES];

    // What a place or a tap adds to where an element lies, -1 outside, and to its position.
    struct Line { Index from, at[AXES]; };
    template <bool TAP> __device__ __forceinline__ Line part(Index i) const {
        const Parts parts = TAP ? apart(i / channels, taps) : apart(i, places);
        Line l = {TAP ? i % channels * channel : parts.outer * image};
#pragma unroll
        for (int d = 0; d < AXES; d++)
            l.at[d] = TAP ? parts.at[d] * dilation[d] : parts.at[d] * stride[d] - padding[d];
        return l;
    }
    __device__ __forceinline__ Line line(Index i) const {
        Line l = part<TAPS_ARE_LINES>(i);
        if (i >= lines) l.from = -1;
        return l;
    }
    // Where an element lies, or -1 outside.
    __device__ __forceinline__ Index find(const Line& line, Index k) const {
        if (line.from < 0) return -1;
        const Line other = part<!TAPS_ARE_LINES>(k);
        Index offset = 0;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            const Index i = line.at[d] + other.at[d];
            if (i < 0 || i >= source[d]) return -1;
            offset = offset * source[d] + i;
        }
        return line.from + other.from + offset * step;
    }
    __device__ __forceinline__ Elem at(const Line& line, Index k) const {
        const Index i = find(line, k);
        return i < 0 ? Elem(0) : p[i];
    }
    __device__ __forceinline__ Place run(const Line& line, Index k) const {
        const Index i = find(line, k);
        return i < 0 ? nullptr : p + i;
    }
};
