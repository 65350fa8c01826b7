// A block scans COLUMNS neighbouring lanes, RUNS * RUN elements at a time. Each thread combines a run of RUN elements,
// and gets the total of the runs before it from shared memory.

constexpr int STEP = RUNS * RUN;

struct Shared {
    Acc totals[RUNS][COLUMNS];
};

// Scans elements begin <= i < end of the lane at offset `lane`, in the order of the scan. `carry` is the result before
// them. Returns the result after them.
template <bool STORES>
__device__ __forceinline__ Acc scan(Shared& shared, const Elem* x, Elem* out, Index lane, bool in_bounds, Index len, Index inner, Index begin, Index end, Acc carry) {
    auto& totals = shared.totals;
    const int run = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    auto address = [&](Index i) { return lane + (REVERSE ? len - 1 - i : i) * inner; };
    for (; begin < end; begin += STEP) {
        Acc prefixes[RUN], total = identity();
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            const Index i = begin + run * RUN + e;
            if (in_bounds && i < end) total = combine(total, load(x[address(i)]));
            prefixes[e] = total;
        }
        totals[run][column] = total;
        __syncthreads();
        for (int distance = 1; distance < RUNS; distance *= 2) {
            const Acc previous = run >= distance ? totals[run - distance][column] : identity();
            __syncthreads();
            if (run >= distance) totals[run][column] = combine(previous, totals[run][column]);
            __syncthreads();
        }
        if (STORES) {
            const Acc previous = run > 0 ? combine(carry, totals[run - 1][column]) : carry;
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const Index i = begin + run * RUN + e;
                if (in_bounds && i < end) out[address(i)] = store(combine(previous, prefixes[e]));
            }
        }
        carry = combine(carry, totals[RUNS - 1][column]);
        __syncthreads();
    }
    return carry;
}
