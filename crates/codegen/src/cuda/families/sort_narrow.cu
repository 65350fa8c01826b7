typedef unsigned long long Record;
__device__ __forceinline__ Record record(unsigned long long key, unsigned long long index) { return key << INDEX_BITS | index; }
__device__ __forceinline__ Record last_record() { return ~0ull; }
__device__ __forceinline__ bool less(Record a, Record b) { return a < b; }
__device__ __forceinline__ long long index_of(Record r) { return (long long)(r & (1ull << INDEX_BITS) - 1); }
