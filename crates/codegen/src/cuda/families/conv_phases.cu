// The gradient of x: a place of x and a tap meet y where x + padding - tap * dilation = y * stride. Along an
// axis, the places x = q * stride + phase of one phase therefore meet every hop-th tap alone, so each phase
// is a product of its own.

// A phase: its places, and the taps first + u * hop that they meet.
struct Phase {
    Index channels, stride[AXES], padding[AXES], dilation[AXES], taps[AXES], hop[AXES], turns[AXES];
    // The divisor that stride and dilation share, and what dilation / unit times gives 1 modulo hop.
    Index unit[AXES], inverse[AXES];
    Index at[AXES], first[AXES];
    // Makes it phase `number`; whether its places meet a tap.
    __device__ __forceinline__ bool enter(Index number) {
        const Parts phase = apart(number, stride);
        bool any = true;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            at[d] = phase.at[d];
            Index to = (at[d] + padding[d]) % stride[d];
            if (to < 0) to += stride[d];
            first[d] = to / unit[d] * inverse[d] % hop[d];
            any = any && to % unit[d] == 0 && first[d] < taps[d];
        }
        return any;
    }
    // The tap of number k, by channel and u, or by u and channel; whether the filter has it.
    __device__ __forceinline__ bool find(Index k, Parts& tap) const {
        tap = apart(CHANNELS_LAST ? k / channels : k, turns);
        if (CHANNELS_LAST) tap.outer = k % channels;
        bool found = true;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            tap.at[d] = first[d] + tap.at[d] * hop[d];
            found = found && tap.at[d] < taps[d];
        }
        return found;
    }
};

// Element (line, k) is w[channel of k, line, tap of k].
struct Filters {
    const Elem* p;
    Index lines, inner, outer, step;
    Phase phase;
    struct Line { const Elem* p; };
    __device__ __forceinline__ Line line(Index i) const { return {i < lines ? p + i * inner : nullptr}; }
    __device__ __forceinline__ const Elem* run(Line l, Index k) const {
        Parts tap;
        if (!phase.find(k, tap) || !l.p) return nullptr;
        Index offset = 0;
#pragma unroll
        for (int d = 0; d < AXES; d++) offset = offset * phase.taps[d] + tap.at[d];
        return l.p + tap.outer * outer + offset * step;
    }
    __device__ __forceinline__ Elem at(Line l, Index k) const {
        const Elem* w = run(l, k);
        return w ? *w : Elem(0);
    }
};

// What the places of a phase, numbered by image and q, meet in y, whose spatial extents are `source`.
struct Places {
    const Elem* p;
    Index lines, image, channel, step;
    Index source[AXES], extents[AXES], places[AXES];
    Phase phase;

    // A position in x; `outer` is -1 where x has none.
    typedef Parts Line;
    __device__ __forceinline__ Line line(Index j) const {
        Line l = apart(j, places);
        if (j >= lines) l.outer = -1;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            l.at[d] = l.at[d] * phase.stride[d] + phase.at[d];
            if (l.at[d] >= extents[d]) l.outer = -1;
        }
        return l;
    }
    __device__ __forceinline__ Index position(const Line& place) const {
        Index at = 0;
#pragma unroll
        for (int d = 0; d < AXES; d++) at = at * extents[d] + place.at[d];
        return at;
    }
    // The element of y that a place meets, or null.
    __device__ __forceinline__ const Elem* run(const Line& place, Index k) const {
        Parts tap;
        if (!phase.find(k, tap) || place.outer < 0) return nullptr;
        Index offset = 0;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            const Index i = place.at[d] + phase.padding[d] - tap.at[d] * phase.dilation[d];
            if (i < 0 || i / phase.stride[d] >= source[d]) return nullptr;
            offset = offset * source[d] + i / phase.stride[d];
        }
        return p + place.outer * image + tap.outer * channel + offset * step;
    }
    __device__ __forceinline__ Elem at(const Line& place, Index k) const {
        const Elem* y = run(place, k);
        return y ? *y : Elem(0);
    }
};

// The sum for a line of filters and a place over the taps that meet an element of y. In a tile's sum, those
// beyond the edges of y count with a zero, of which an infinite weight makes NaN.
__device__ __forceinline__ Acc sum_inside(const Filters& w, const Places& y, Index i, const Parts& place, Index first, Index end) {
    Acc sum = 0;
#pragma unroll 1
    for (Index k = first; k < end && sum == sum; k++) {
        const Elem* met = y.run(place, k);
        if (met) sum += load(w.at(w.line(i), k)) * load(*met);
    }
    return sum;
}
