typedef unsigned long long Record;
__device__ __forceinline__ Record record(unsigned key, unsigned index) { return (unsigned long long)key << 32 | index; }
__device__ __forceinline__ Record last_record() { return ~0ull; }
__device__ __forceinline__ bool less(Record a, Record b) { return a < b; }
__device__ __forceinline__ long long index_of(Record r) { return (unsigned)r; }
