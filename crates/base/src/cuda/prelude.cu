// What every kernel may use. No header is included: they cost most of a compilation.

struct kiln_errors { unsigned state; unsigned padding; long long index; long long bound; };

__device__ __forceinline__ void kiln_report(kiln_errors* errors, unsigned site, long long index, long long bound) {
    if (atomicCAS(&errors->state, 0u, site + 1u) == 0u) {
        errors->index = index;
        errors->bound = bound;
    }
}
