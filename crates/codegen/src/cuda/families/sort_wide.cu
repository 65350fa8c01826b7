struct Record { unsigned long long key, index; };
__device__ __forceinline__ Record record(unsigned long long key, unsigned long long index) { return {key, index}; }
__device__ __forceinline__ Record last_record() { return {~0ull, ~0ull}; }
__device__ __forceinline__ bool less(Record a, Record b) { return a.key < b.key || (a.key == b.key && a.index < b.index); }
__device__ __forceinline__ long long index_of(Record r) { return (long long)r.index; }
