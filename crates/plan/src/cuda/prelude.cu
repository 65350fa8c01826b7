// Functions that every kernel may use. No header is included: they cost most of a compilation.
#pragma nv_diag_suppress 177

struct alignas(128) kiln_tensor_map { unsigned long long opaque[16]; };
struct kiln_errors { unsigned state; unsigned padding; long long index; long long bound; };

__device__ __forceinline__ void kiln_report(kiln_errors* errors, unsigned site, long long index, long long bound) {
    if (atomicCAS(&errors->state, 0u, site + 1u) == 0u) {
        errors->index = index;
        errors->bound = bound;
    }
}

// An index that is reported, and replaced by 0, where it is out of range.
__device__ __forceinline__ long long kiln_checked(long long index, long long bound, kiln_errors* errors, unsigned site) {
    if ((unsigned long long)index < (unsigned long long)bound) return index;
    kiln_report(errors, site, index, bound);
    return 0;
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void kiln_meet_cluster() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}
// True in all threads of a cluster if a thread says so.
static __device__ __noinline__ bool kiln_any_of_cluster(bool here) {
    __shared__ unsigned any;
    unsigned blocks;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    if (threadIdx.x == 0) any = 0;
    kiln_meet_cluster();
    for (unsigned block = 0; here && block < blocks; block++)
        asm volatile("{.reg .b32 at; mapa.shared::cluster.u32 at, %0, %1; red.relaxed.cluster.shared::cluster.or.b32 [at], 1;}"
                     :: "r"((unsigned)__cvta_generic_to_shared(&any)), "r"(block) : "memory");
    kiln_meet_cluster();
    return any != 0;
}
#endif

#define kiln_inf __int_as_float(0x7f800000)
#define kiln_nan __int_as_float(0x7fc00000)
#define KILN_FN static __device__ __forceinline__
// Long or rare functions are not inlined.
#define KILN_CALL static __device__ __noinline__

// N neighbours in memory, read and written by instructions as wide as they come.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) kiln_vec { T v[N]; };

template <int N, class T> KILN_FN kiln_vec<T, N> kiln_load(const T* p) { return *(const kiln_vec<T, N>*)p; }
template <int N, class T> KILN_FN void kiln_store(T* p, const kiln_vec<T, N>& x) { *(kiln_vec<T, N>*)p = x; }

// Functions by special function units, for what may be less precise.

KILN_FN float kiln_fast_div(float x, float y) { float z; asm("div.full.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }
KILN_FN float kiln_fast_sqrt(float x) { float y; asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
KILN_FN float kiln_fast_tanh(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Half-precision floats are unsigned shorts in memory.

KILN_FN float kiln_from_bf16(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
KILN_FN float kiln_from_f16(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
KILN_FN unsigned short kiln_to_bf16(float x) { unsigned short y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
KILN_FN unsigned short kiln_to_f16(float x) { unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }

// A float that rounds to a narrower one as the double does: rounded to odd.
KILN_FN float kiln_to_odd(double x) {
    float y = __double2float_rz(x);
    return (double)y == x || x != x || fabsf(y) == kiln_inf ? y : __int_as_float(__float_as_int(y) | 1);
}
KILN_FN unsigned short kiln_to_bf16(double x) { return kiln_to_bf16(kiln_to_odd(x)); }
KILN_FN unsigned short kiln_to_f16(double x) { return kiln_to_f16(kiln_to_odd(x)); }

// Floats of 8 bits are unsigned chars in memory. Without -0 (fnuz), its bits are NaN.

template <unsigned fraction, unsigned bias, unsigned largest, bool fnuz> KILN_FN float kiln_from_f8(unsigned x) {
    unsigned rest = x & 0x7f, up = rest << (23 - fraction);
    float y = __uint_as_float(up + ((127 - bias) << 23));
    if (rest < 1 << fraction) y = (float)rest * __uint_as_float((128 - bias - fraction) << 23);
    if (rest > largest) y = __uint_as_float(up | 0x7f800000);
    if (fnuz && x == 0x80) y = kiln_nan;
    return __uint_as_float(__float_as_uint(y) | (x & 0x80) << 24);
}
template <unsigned fraction, unsigned bias, unsigned largest, bool fnuz> KILN_FN unsigned char kiln_to_f8(float x) {
    unsigned sign = __float_as_uint(x) >> 24 & 0x80, rest = __float_as_uint(x) & 0x7fffffff;
    unsigned aligner = (151 - bias - fraction) << 23;
    unsigned near = (rest + (rest >> (23 - fraction) & 1) - ((127 - bias) << 23) + (1 << (22 - fraction)) - 1) >> (23 - fraction);
    if (rest < (128 - bias) << 23) near = __float_as_uint(__uint_as_float(rest) + __uint_as_float(aligner)) - aligner;
    if (fnuz) return near > largest ? 0x80 : near == 0 ? 0 : sign | near;
    return sign | (rest > 0x7f800000 ? 0x7f : near > largest ? largest + 1 : near);
}
#define KILN_FLOAT8(name, ...) \
    KILN_FN float kiln_from_##name(unsigned char x) { return kiln_from_f8<__VA_ARGS__>(x); } \
    KILN_FN unsigned char kiln_to_##name(float x) { return kiln_to_f8<__VA_ARGS__>(x); } \
    KILN_FN unsigned char kiln_to_##name(double x) { return kiln_to_f8<__VA_ARGS__>(kiln_to_odd(x)); }
KILN_FLOAT8(f8_e4m3, 3, 7, 0x7e, false)
KILN_FLOAT8(f8_e5m2, 2, 15, 0x7b, false)
KILN_FLOAT8(f8_e4m3fnuz, 3, 8, 0x7f, true)
KILN_FLOAT8(f8_e5m2fnuz, 2, 16, 0x7f, true)

// Floats to integers: truncated, saturated, 0 for NaN.

template <class F> KILN_FN int kiln_to_i32(F x) { return x != x ? 0 : x >= (F)2147483648.0 ? 2147483647 : x < (F)-2147483648.0 ? -2147483647 - 1 : (int)x; }
template <class F> KILN_FN long long kiln_to_i64(F x) {
    return x != x ? 0 : x >= (F)9223372036854775808.0 ? 0x7fffffffffffffffLL : x < (F)-9223372036854775808.0 ? -0x7fffffffffffffffLL - 1 : (long long)x;
}
template <class F> KILN_FN unsigned kiln_to_u32(F x) { return x >= (F)4294967296.0 ? 0xffffffffu : x > (F)0 ? (unsigned)x : 0u; }
template <class F> KILN_FN unsigned long long kiln_to_u64(F x) {
    return x >= (F)18446744073709551616.0 ? 0xffffffffffffffffULL : x > (F)0 ? (unsigned long long)x : 0ULL;
}
template <class F> KILN_FN int kiln_to_u8(F x) { return min(max(kiln_to_i32(x), 0), 255); }
template <class F> KILN_FN int kiln_to_u16(F x) { return min(max(kiln_to_i32(x), 0), 65535); }
template <class F> KILN_FN int kiln_to_i8(F x) { return min(max(kiln_to_i32(x), -128), 127); }
template <class F> KILN_FN int kiln_to_i16(F x) { return min(max(kiln_to_i32(x), -32768), 32767); }

// Integers wrap.

KILN_FN int kiln_add(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
KILN_FN int kiln_sub(int a, int b) { return (int)((unsigned)a - (unsigned)b); }
KILN_FN int kiln_mul(int a, int b) { return (int)((unsigned)a * (unsigned)b); }
KILN_FN int kiln_neg(int a) { return (int)(0u - (unsigned)a); }
KILN_FN long long kiln_add(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
KILN_FN long long kiln_sub(long long a, long long b) { return (long long)((unsigned long long)a - (unsigned long long)b); }
KILN_FN long long kiln_mul(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
KILN_FN long long kiln_neg(long long a) { return (long long)(0ULL - (unsigned long long)a); }
template <class I> KILN_FN I kiln_abs(I a) { return a < 0 ? kiln_neg(a) : a; }
template <class I> KILN_FN I kiln_shl(I a, I b) { return b < 0 || b >= (I)(8 * sizeof(I)) ? (I)0 : (I)((unsigned long long)a << b); }
template <class I> KILN_FN I kiln_shr(I a, I b) { return b < 0 || b >= (I)(8 * sizeof(I)) ? (a < 0 ? (I)-1 : (I)0) : (I)(a >> b); }

template <class I> KILN_FN I kiln_div(I a, I b, kiln_errors* errors, unsigned site) {
    if (b == 0) { kiln_report(errors, site, a, 0); return 0; }
    return b == -1 ? kiln_neg(a) : a / b;
}
template <class I> KILN_FN I kiln_rem(I a, I b, kiln_errors* errors, unsigned site) {
    if (b == 0) { kiln_report(errors, site, a, 0); return 0; }
    return b == -1 ? (I)0 : a % b;
}
template <class I> KILN_FN I kiln_floordiv(I a, I b, kiln_errors* errors, unsigned site) {
    I q = kiln_div(a, b, errors, site);
    return b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
template <class I> KILN_FN I kiln_floormod(I a, I b, kiln_errors* errors, unsigned site) {
    I r = kiln_rem(a, b, errors, site);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <class I> KILN_CALL I kiln_pow(I base, I exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
    I result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = kiln_mul(result, base);
        base = kiln_mul(base, base);
    }
    return result;
}
template <class I> KILN_CALL I kiln_gcd(I x, I y) {
    unsigned long long a = (unsigned long long)kiln_abs((long long)x), b = (unsigned long long)kiln_abs((long long)y);
    while (b != 0) { unsigned long long r = a % b; a = b; b = r; }
    return (I)a;
}
template <class I> KILN_CALL I kiln_lcm(I x, I y) {
    unsigned long long g = (unsigned long long)kiln_gcd((long long)x, (long long)y);
    if (g == 0) return 0;
    return (I)((unsigned long long)kiln_abs((long long)x) / g * (unsigned long long)kiln_abs((long long)y));
}

// NaN wins.
template <class T> KILN_FN T kiln_max(T a, T b) { return b > a || b != b ? b : a; }
template <class T> KILN_FN T kiln_min(T a, T b) { return b < a || b != b ? b : a; }

KILN_FN bool kiln_sign_bit(float x) { return __float_as_int(x) < 0; }
KILN_FN bool kiln_sign_bit(double x) { return __double_as_longlong(x) < 0; }
KILN_FN float kiln_floormod(float a, float b) { float r = fmodf(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
KILN_FN double kiln_floormod(double a, double b) { double r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }

// Random numbers: Philox 4x32-10.

struct kiln_words { unsigned w[4]; };

// The words of the number at a position come first; a block has so many numbers.
KILN_FN kiln_words kiln_random(long long position, long long key, unsigned numbers) {
    unsigned long long block = (unsigned long long)position / numbers;
    unsigned at = (unsigned)((unsigned long long)position % numbers) * (4u / numbers);
    kiln_words c = {{(unsigned)block, (unsigned)(block >> 32), numbers - 1u, 0u}};
    unsigned k0 = (unsigned)key, k1 = (unsigned)((unsigned long long)key >> 32);
    #pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned a = c.w[0], b = c.w[2];
        c = {{__umulhi(b, 0xCD9E8D57u) ^ c.w[1] ^ k0, b * 0xCD9E8D57u, __umulhi(a, 0xD2511F53u) ^ c.w[3] ^ k1, a * 0xD2511F53u}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    if (at & 2u) { c.w[0] = c.w[2]; c.w[1] = c.w[3]; }
    if (at & 1u) c.w[0] = c.w[1];
    return c;
}
KILN_FN long long kiln_random_bits(kiln_words x) { return (long long)((((unsigned long long)x.w[1] << 32) | x.w[0]) >> 1); }
KILN_FN float kiln_uniform_f32(kiln_words x) { return (float)(x.w[0] >> 8) * (1.0f / 16777216.0f); }
KILN_FN double kiln_uniform_f64(kiln_words x) { return (double)((((unsigned long long)x.w[1] << 32) | x.w[0]) >> 11) * (1.0 / 9007199254740992.0); }
KILN_FN float kiln_normal_f32(kiln_words x) {
    kiln_words y = {{x.w[1], 0u, 0u, 0u}};
    float u = ((float)(x.w[0] >> 1) + 1.0f) * (1.0f / 2147483648.0f);
    return sqrtf(-2.0f * logf(u)) * cosf(kiln_uniform_f32(y) * 6.2831855f);
}
KILN_FN double kiln_normal_f64(kiln_words x) {
    kiln_words y = {{x.w[2], x.w[3], 0u, 0u}};
    return sqrt(-2.0 * log(1.0 - kiln_uniform_f64(x))) * cospi(2.0 * kiln_uniform_f64(y));
}

// Reductions: how two values combine, and all of N lanes (a power of 2) of a warp.

struct kiln_sum {
    KILN_FN float of(float a, float b) { return a + b; }
    KILN_FN double of(double a, double b) { return a + b; }
    KILN_FN int of(int a, int b) { return kiln_add(a, b); }
    KILN_FN long long of(long long a, long long b) { return kiln_add(a, b); }
};
struct kiln_prod {
    KILN_FN float of(float a, float b) { return a * b; }
    KILN_FN double of(double a, double b) { return a * b; }
    KILN_FN int of(int a, int b) { return kiln_mul(a, b); }
    KILN_FN long long of(long long a, long long b) { return kiln_mul(a, b); }
};
struct kiln_maximum { template <class T> KILN_FN T of(T a, T b) { return kiln_max(a, b); } };
struct kiln_minimum { template <class T> KILN_FN T of(T a, T b) { return kiln_min(a, b); } };

// An element and its place; the first of the extreme ones wins, and NaN is the most extreme.
template <class T> struct kiln_place { T value; long long at; };
KILN_FN bool kiln_beats(float a, float b, bool larger) { return (a != a && b == b) || (larger ? a > b : a < b); }
KILN_FN bool kiln_beats(double a, double b, bool larger) { return (a != a && b == b) || (larger ? a > b : a < b); }
KILN_FN bool kiln_beats(int a, int b, bool larger) { return larger ? a > b : a < b; }
KILN_FN bool kiln_beats(long long a, long long b, bool larger) { return larger ? a > b : a < b; }
template <bool larger> struct kiln_first {
    template <class T> KILN_FN kiln_place<T> of(kiln_place<T> a, kiln_place<T> b) {
        if (kiln_beats(a.value, b.value, larger)) return a;
        return kiln_beats(b.value, a.value, larger) || b.at < a.at ? b : a;
    }
};
// The place that nothing was found at.
#define kiln_nowhere 0x7fffffffffffffffLL

template <int N, class T> KILN_FN T kiln_across(T x, int distance) {
    return __shfl_xor_sync(N == 32 ? 0xffffffffu : ((1u << (N & 31)) - 1u) << (threadIdx.x & 31 & ~(N - 1)), x, distance);
}
template <int N, class T> KILN_FN kiln_place<T> kiln_across(kiln_place<T> x, int distance) {
    return {kiln_across<N>(x.value, distance), kiln_across<N>(x.at, distance)};
}
template <class Op, int N, class T> KILN_FN T kiln_lanes(T x) {
    #pragma unroll
    for (int distance = N / 2; distance > 0; distance /= 2) x = Op::of(x, kiln_across<N>(x, distance));
    return x;
}
