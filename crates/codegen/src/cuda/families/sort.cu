// Elements become keys: unsigned numbers of the same order. A key and its index make a record; no two of
// these are equal, so whatever sorts them gives the stable order.

// The key of a float: NaN is the largest, and -0 is 0.
template <class Bits> __device__ __forceinline__ Bits float_key(Bits x, Bits sign, Bits infinity) {
    const Bits magnitude = x & ~sign;
    if (magnitude > infinity) return sign | (sign - 1);
    return x & sign ? sign - magnitude : sign + magnitude;
}

// Sorts each WIDTH of the records in shared memory.
__device__ __forceinline__ void sort_shared(Record* records) {
    for (int size = 2; size <= WIDTH; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            const int i = 2 * threadIdx.x - threadIdx.x % stride, j = i + stride;
            const bool ascending = (i % WIDTH & size) == 0;
            const Record a = records[i], b = records[j];
            if (less(b, a) == ascending) {
                records[i] = b;
                records[j] = a;
            }
        }
    __syncthreads();
}

// Where the record at `at` of a lane goes when neighbouring sorted runs of `run` records, `span` records
// together, become one: after those before it in its run, and the smaller ones of the other runs.
__device__ __forceinline__ Index merged_place(const Record* lane, Index len, Index run, Index span, Index at) {
    const Record own = lane[at];
    const Index first = at / span * span, end = first + span < len ? first + span : len;
    Index place = first + at % run;
    for (Index other = first; other < end; other += run) {
        if (other == at - at % run) continue;
        Index low = other, high = other + run < end ? other + run : end;
        while (low < high) {
            const Index middle = (low + high) / 2;
            if (less(lane[middle], own)) low = middle + 1;
            else high = middle;
        }
        place += low - other;
    }
    return place;
}
