// Elements become keys: unsigned numbers of the same order. A record is a key and its index. No two records are equal,
// so any sort of them is stable.

// The key of a float: NaN is the largest, and -0 is 0.
template <class Bits> __device__ __forceinline__ Bits float_key(Bits x, Bits sign, Bits infinity) {
    const Bits magnitude = x & ~sign;
    if (magnitude > infinity) return sign | (sign - 1);
    return x & sign ? sign - magnitude : sign + magnitude;
}

// Sorts each WIDTH records in shared memory.
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

// Returns the index of a lane's record i after each `span` records are merged from sorted runs of `run`: it follows
// those before it in its run, and the smaller ones of the other runs.
__device__ __forceinline__ Index merged_index(const Record* lane, Index len, Index run, Index span, Index i) {
    const Record current = lane[i];
    const Index begin = i / span * span, end = begin + span < len ? begin + span : len;
    Index merged = begin + i % run;
    for (Index run_begin = begin; run_begin < end; run_begin += run) {
        if (run_begin == i - i % run) continue;
        Index low = run_begin, high = run_begin + run < end ? run_begin + run : end;
        while (low < high) {
            const Index middle = (low + high) / 2;
            if (less(lane[middle], current)) low = middle + 1;
            else high = middle;
        }
        merged += low - run_begin;
    }
    return merged;
}
