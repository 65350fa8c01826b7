// What the places of the result, numbered by image and position, meet in x, whose spatial extents are
// `source`. Sums run over taps, and within one over channels, of which `step` elements later the next position
// begins; so where channels lie side by side, neighbours in a sum do.
template <class Place> struct Patches {
    Place p;
    Index lines, channels, image, channel, step;
    Index source[AXES], places[AXES], taps[AXES], stride[AXES], padding[AXES], dilation[AXES];

    // Where an image begins, or -1 outside, and the position of the first tap.
    struct Line { Index image, at[AXES]; };
    __device__ __forceinline__ Line line(Index i) const {
        const Parts place = apart(i, places);
        Line l;
        l.image = i < lines ? place.outer * image : -1;
#pragma unroll
        for (int d = 0; d < AXES; d++) l.at[d] = place.at[d] * stride[d] - padding[d];
        return l;
    }
    // Where an element lies, or -1 outside.
    __device__ __forceinline__ Index find(const Line& line, Index k) const {
        if (line.image < 0) return -1;
        const Parts tap = apart(k / channels, taps);
        Index offset = 0;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            const Index i = line.at[d] + tap.at[d] * dilation[d];
            if (i < 0 || i >= source[d]) return -1;
            offset = offset * source[d] + i;
        }
        return line.image + offset * step + k % channels * channel;
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
