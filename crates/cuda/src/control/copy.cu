template <int UNIT> KILN_FN void kiln_copy_unit(const unsigned char* from, unsigned char* to) {
    kiln_store(to, kiln_load<UNIT>(from));
}

// Copies rows of so many units of 1 to 16 bytes, which are `from_pitch` and `to_pitch` units apart.
extern "C" __global__ void kiln_copy(const unsigned char* from, unsigned char* to, long long unit, long long units, long long row, long long from_pitch, long long to_pitch, kiln_errors* errors, int guarded) {
    if (guarded && errors->state) return;
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= units) return;
    long long n = i < row ? 0 : i / row, column = i - n * row;
    from += (n * from_pitch + column) * unit;
    to += (n * to_pitch + column) * unit;
    switch (unit) {
        case 16: return kiln_copy_unit<16>(from, to);
        case 8: return kiln_copy_unit<8>(from, to);
        case 4: return kiln_copy_unit<4>(from, to);
        case 2: return kiln_copy_unit<2>(from, to);
        default: *to = *from;
    }
}
