// A block scans COLUMNS neighbouring lanes, RUNS * RUN elements at a time: each thread combines a run of
// RUN elements, and the runs before its own come from shared memory.

constexpr int STEP = RUNS * RUN;

struct Shared {
    Acc totals[RUNS][COLUMNS];
};

// Elements first <= i < end in the order of the scan, of the lane that begins at `lane`; `carry` is what
// comes before them. Gives what they and `carry` combine to.
template <bool STORES>
__device__ __forceinline__ Acc scan(Shared& shared, const Elem* x, Elem* out, Index lane, bool exists, Index len, Index inner, Index first, Index end, Acc carry) {
    auto& totals = shared.totals;
    const int run = threadIdx.x / COLUMNS, column = threadIdx.x % COLUMNS;
    auto place = [&](Index i) { return lane + (REVERSE ? len - 1 - i : i) * inner; };
    for (; first < end; first += STEP) {
        Acc own[RUN], total = identity();
#pragma unroll
        for (int e = 0; e < RUN; e++) {
            const Index i = first + run * RUN + e;
            if (exists && i < end) total = combine(total, load(x[place(i)]));
            own[e] = total;
        }
        totals[run][column] = total;
        __syncthreads();
        for (int distance = 1; distance < RUNS; distance *= 2) {
            const Acc before = run >= distance ? totals[run - distance][column] : identity();
            __syncthreads();
            if (run >= distance) totals[run][column] = combine(before, totals[run][column]);
            __syncthreads();
        }
        if (STORES) {
            const Acc before = run > 0 ? combine(carry, totals[run - 1][column]) : carry;
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                const Index i = first + run * RUN + e;
                if (exists && i < end) out[place(i)] = store(combine(before, own[e]));
            }
        }
        carry = combine(carry, totals[RUNS - 1][column]);
        __syncthreads();
    }
    return carry;
}
