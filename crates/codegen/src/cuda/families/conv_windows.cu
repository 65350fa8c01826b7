// What a place of the result and a tap of the filter meet in x, whose spatial extents are `source`.
// Places are numbered by image and position, taps by channel and position in the filter.
template <class Place> struct Windows {
    Place p;
    Index lines, image, channel;
    Index source[AXES], places[AXES], taps[AXES], stride[AXES], padding[AXES], dilation[AXES];

    typedef Parts Line;
    __device__ __forceinline__ Line line(Index i) const {
        Line l = apart(i, TAPS_ARE_LINES ? taps : places);
        if (i >= lines) l.outer = -1;
        return l;
    }
    __device__ __forceinline__ Elem at(const Line& line, Index k) const {
        if (line.outer < 0) return Elem(0);
        const Parts other = apart(k, TAPS_ARE_LINES ? places : taps);
        const Parts &place = TAPS_ARE_LINES ? other : line, &tap = TAPS_ARE_LINES ? line : other;
        const auto from = p + place.outer * image + tap.outer * channel;
        Index offset = 0;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            const Index i = place.at[d] * stride[d] + tap.at[d] * dilation[d] - padding[d];
            if (i < 0 || i >= source[d]) return Elem(0);
            offset = offset * source[d] + i;
        }
        return from[offset];
    }
};
