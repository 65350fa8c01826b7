// x * y + z: rounded once, or of whole numbers without what doesn't fit.
__device__ __forceinline__ float multiply_add(float x, float y, float z) { return fma(x, y, z); }
__device__ __forceinline__ double multiply_add(double x, double y, double z) { return fma(x, y, z); }
__device__ __forceinline__ int multiply_add(int x, int y, int z) {
    return (int)((unsigned)x * (unsigned)y + (unsigned)z);
}
__device__ __forceinline__ long long multiply_add(long long x, long long y, long long z) {
    return (long long)((unsigned long long)x * (unsigned long long)y + (unsigned long long)z);
}

