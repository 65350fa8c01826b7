/* Functions that generated sources use. They need libm and nothing else. */
#ifndef KILN_C99_H
#define KILN_C99_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* Indices are signed, so that loops of them vectorise. */
typedef ptrdiff_t kiln_int;

/* Sums of products use the processor's fused multiply-add where it has one. */
#ifdef FP_FAST_FMAF
#define kiln_fma_f32(a, b, c) fmaf(a, b, c)
#else
#define kiln_fma_f32(a, b, c) ((a) * (b) + (c))
#endif
#ifdef FP_FAST_FMA
#define kiln_fma_f64(a, b, c) fma(a, b, c)
#else
#define kiln_fma_f64(a, b, c) ((a) * (b) + (c))
#endif

/* The first error of a run is the one that is told of. */
static inline void kiln_fail(int *failed, int site) {
  if (*failed == 0) *failed = site;
}

/* An index that data gives; 0 where it is none of `extent`. */
static inline kiln_int kiln_index(int64_t i, int64_t extent, int *failed, int site) {
  if (i >= 0 && i < extent) return (kiln_int)i;
  kiln_fail(failed, site);
  return 0;
}

/* Integers wrap around. */
#define KILN_INTEGER(name, type, utype, least)                                                      \
  static inline type kiln_neg_##name(type a) { return (type)(0 - (utype)a); }                       \
  static inline type kiln_abs_##name(type a) { return a < 0 ? kiln_neg_##name(a) : a; }             \
  static inline type kiln_add_##name(type a, type b) { return (type)((utype)a + (utype)b); }        \
  static inline type kiln_sub_##name(type a, type b) { return (type)((utype)a - (utype)b); }        \
  static inline type kiln_mul_##name(type a, type b) { return (type)((utype)a * (utype)b); }        \
  static inline type kiln_max_##name(type a, type b) { return a > b ? a : b; }                      \
  static inline type kiln_min_##name(type a, type b) { return a < b ? a : b; }                      \
  static inline type kiln_div_##name(type a, type b, int *failed, int site) {                       \
    if (b == 0) { kiln_fail(failed, site); return 0; }                                              \
    return b == -1 ? kiln_neg_##name(a) : a / b;                                                    \
  }                                                                                                 \
  static inline type kiln_rem_##name(type a, type b, int *failed, int site) {                       \
    if (b == 0) { kiln_fail(failed, site); return 0; }                                              \
    return b == -1 ? 0 : a % b;                                                                     \
  }                                                                                                 \
  static inline type kiln_floordiv_##name(type a, type b, int *failed, int site) {                  \
    const type q = kiln_div_##name(a, b, failed, site);                                             \
    return b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;                       \
  }                                                                                                 \
  static inline type kiln_floormod_##name(type a, type b, int *failed, int site) {                  \
    const type r = kiln_rem_##name(a, b, failed, site);                                             \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;                                                \
  }                                                                                                 \
  static inline type kiln_shl_##name(type a, type b) {                                              \
    return b < 0 || b >= (type)(8 * sizeof(type)) ? 0 : (type)((utype)a << b);                      \
  }                                                                                                 \
  static inline type kiln_shr_##name(type a, type b) {                                              \
    const type fill = a < 0 ? -1 : 0;                                                               \
    return b < 0 || b >= (type)(8 * sizeof(type)) ? fill                                            \
           : a < 0 ? (type) ~(~(utype)a >> b) : (type)((utype)a >> b);                              \
  }                                                                                                 \
  static inline type kiln_pow_##name(type a, type b) {                                              \
    utype result = 1, square = (utype)a;                                                            \
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;                             \
    for (; b > 0; b /= 2) {                                                                         \
      if (b % 2 == 1) result *= square;                                                             \
      square *= square;                                                                             \
    }                                                                                               \
    return (type)result;                                                                            \
  }                                                                                                 \
  static inline utype kiln_common_##name(type a, type b) {                                          \
    utype x = a < 0 ? 0 - (utype)a : (utype)a, y = b < 0 ? 0 - (utype)b : (utype)b;                 \
    while (y != 0) { const utype r = x % y; x = y; y = r; }                                         \
    return x;                                                                                       \
  }                                                                                                 \
  static inline type kiln_gcd_##name(type a, type b) { return (type)kiln_common_##name(a, b); }     \
  static inline type kiln_lcm_##name(type a, type b) {                                              \
    const utype g = kiln_common_##name(a, b);                                                       \
    const utype x = a < 0 ? 0 - (utype)a : (utype)a, y = b < 0 ? 0 - (utype)b : (utype)b;           \
    return g == 0 ? 0 : (type)(x / g * y);                                                          \
  }
KILN_INTEGER(i32, int32_t, uint32_t, INT32_MIN)
KILN_INTEGER(i64, int64_t, uint64_t, INT64_MIN)

/* Not a number goes through the larger and the smaller of two. */
#define KILN_FLOAT(name, type, f)                                                                   \
  static inline type kiln_max_##name(type a, type b) { return (b > a) | (b != b) ? b : a; }         \
  static inline type kiln_min_##name(type a, type b) { return (b < a) | (b != b) ? b : a; }         \
  static inline type kiln_add_##name(type a, type b) { return a + b; }                              \
  static inline type kiln_mul_##name(type a, type b) { return a * b; }                              \
  static inline type kiln_floormod_##name(type a, type b) {                                         \
    const type r = fmod##f(a, b);                                                                   \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;                                                \
  }                                                                                                 \
  static inline type kiln_logsumexp_##name(type a, type b) {                                        \
    const type most = kiln_max_##name(a, b);                                                        \
    const type least = a > b ? b : a;                                                               \
    return most == -(type)INFINITY || most != most || most == (type)INFINITY ? most                 \
           : most + log1p##f(exp##f(least - most));                                                 \
  }
KILN_FLOAT(f32, float, f)
KILN_FLOAT(f64, double, )

/* Floats to integers: towards 0, to the nearest end where they are beyond it, and 0 for not a number. */
#define KILN_TO(name, type, least, most)                                                            \
  static inline type kiln_to_##name(double x) {                                                     \
    return x != x ? 0 : x <= (double)(least) ? (type)(least) : x >= (double)(most) ? (type)(most) : (type)x; \
  }
KILN_TO(u8, uint8_t, 0, UINT8_MAX)
KILN_TO(i8, int8_t, INT8_MIN, INT8_MAX)
KILN_TO(u16, uint16_t, 0, UINT16_MAX)
KILN_TO(i16, int16_t, INT16_MIN, INT16_MAX)
KILN_TO(u32, uint32_t, 0, UINT32_MAX)
KILN_TO(i32, int32_t, INT32_MIN, INT32_MAX)
KILN_TO(u64, uint64_t, 0, UINT64_MAX)
KILN_TO(i64, int64_t, INT64_MIN, INT64_MAX)

static inline float kiln_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
static inline uint32_t kiln_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* Halves are stored as their bits. */
static inline float kiln_from_bf16(uint16_t x) { return kiln_float((uint32_t)x << 16); }
static inline uint16_t kiln_to_bf16_f32(float x) {
  const uint32_t bits = kiln_bits(x);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float kiln_from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;
  if (rest >= 0x7c00) return kiln_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return kiln_float(sign | (rest + 0x1c000) << 13);
  return (sign ? -1.0f : 1.0f) * ((float)rest * 5.9604644775390625e-8f);
}
static inline uint16_t kiln_to_f16_f32(float x) {
  const uint32_t bits = kiln_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (rest >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  /* Adding a number whose last bit is that of the result rounds to it. */
  if (rest < 0x38800000) return (uint16_t)(sign | (kiln_bits(kiln_float(rest) + 0.5f) - 0x3f000000));
  return (uint16_t)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13));
}
/* A float that rounds to a narrower one as the double does: towards 0, and odd where it is not the double. */
static inline float kiln_to_odd(double x) {
  const float y = (float)x;
  return (double)y == x || x != x ? y : kiln_float((kiln_bits(y) - (fabs((double)y) > fabs(x))) | 1);
}
static inline uint16_t kiln_to_f16_f64(double x) { return kiln_to_f16_f32(kiln_to_odd(x)); }
static inline uint16_t kiln_to_bf16_f64(double x) { return kiln_to_bf16_f32(kiln_to_odd(x)); }

/* Floats of 8 bits are stored as their bits; without -0 (fnuz), its bits are NaN. */
#define KILN_FLOAT8(name, fraction, bias, largest, fnuz)                                            \
  static inline float kiln_from_##name(uint8_t x) {                                                 \
    const uint32_t rest = x & 0x7f, sign = (uint32_t)(x & 0x80) << 24, up = rest << (23 - fraction); \
    if (rest > largest) return kiln_float(sign | up | 0x7f800000);                                  \
    if (fnuz && x == 0x80) return NAN;                                                              \
    if (rest >> fraction) return kiln_float(sign | (up + ((uint32_t)(127 - bias) << 23)));          \
    return kiln_float(sign | kiln_bits((float)rest * kiln_float((uint32_t)(128 - bias - fraction) << 23))); \
  }                                                                                                 \
  static inline uint8_t kiln_to_##name##_f32(float x) {                                             \
    const uint32_t sign = kiln_bits(x) >> 24 & 0x80, rest = kiln_bits(x) & 0x7fffffff;              \
    const uint32_t aligner = (uint32_t)(151 - bias - fraction) << 23;                               \
    const uint32_t up = rest + (rest >> (23 - fraction) & 1) - ((uint32_t)(127 - bias) << 23)        \
                        + (1u << (22 - fraction)) - 1;                                              \
    const uint32_t near = rest >= (uint32_t)(128 - bias) << 23 ? up >> (23 - fraction)               \
                          : kiln_bits(kiln_float(rest) + kiln_float(aligner)) - aligner;            \
    if (fnuz) return (uint8_t)(near > largest ? 0x80 : near == 0 ? 0 : sign | near);                \
    return (uint8_t)(sign | (rest > 0x7f800000 ? 0x7f : near > largest ? largest + 1 : near));      \
  }                                                                                                 \
  static inline uint8_t kiln_to_##name##_f64(double x) { return kiln_to_##name##_f32(kiln_to_odd(x)); }
KILN_FLOAT8(f8_e4m3, 3, 7, 0x7e, 0)
KILN_FLOAT8(f8_e5m2, 2, 15, 0x7b, 0)
KILN_FLOAT8(f8_e4m3fnuz, 3, 8, 0x7f, 1)
KILN_FLOAT8(f8_e5m2fnuz, 2, 16, 0x7f, 1)

/* Elementary functions without branches, so that loops of them vectorise. */
#define kiln_round_f32 12582912.0f
static inline float kiln_exp_f32(float x) {
  const float low = x < -104.5f ? -104.5f : x;
  const float y = low > 89.0f ? 89.0f : low;
  const float turns = y * 1.44269504f + kiln_round_f32;
  const float n = turns - kiln_round_f32;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
  const float p = ((((((1.9875691e-4f * r + 1.3981999e-3f) * r + 8.333452e-3f) * r + 4.1665796e-2f) * r
                     + 1.6666665e-1f) * r + 5e-1f) * r + 1.0f) * r + 1.0f;
  /* Two exact steps, since 2 to the n may be no normal number. Not a number has some n. */
  const int32_t k = (int32_t)(kiln_bits(turns) - 0x4b400000u);
  const uint32_t half = (uint32_t)((k + 1024) / 2 - 512);
  return p * kiln_float((half + 127u) << 23) * kiln_float(((uint32_t)k - half + 127u) << 23);
}
static inline float kiln_sigmoid_f32(float x) {
  const float e = kiln_exp_f32(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
static inline float kiln_tanh_f32(float x) {
  const float a = fabsf(x), z = x * x;
  const float small = ((((-5.7049887e-3f * z + 2.063909e-2f) * z - 5.3739716e-2f) * z + 1.3331442e-1f) * z
                       - 3.333328e-1f) * z * x + x;
  const float large = 1.0f - 2.0f / (kiln_exp_f32(2.0f * (a > 10.0f ? 10.0f : a)) + 1.0f);
  return a < 0.625f ? small : copysignf(large, x);
}
static inline float kiln_erf_f32(float x) {
  const float a = fabsf(x), z = x * x, t = a > 4.0f ? 4.0f : a;
  const float small = (((((-5.967617e-4f * z + 4.991194e-3f) * z - 2.6768135e-2f) * z + 1.1281992e-1f) * z
                        - 3.7612534e-1f) * z + 1.2837917e-1f) * x + x;
  const float p = ((((((-1.7285347e-5f * t + 3.831972e-4f) * t - 3.8839644e-3f) * t + 2.4254622e-2f) * t
                     - 1.0677788e-1f) * t - 6.3484687e-1f) * t - 1.2871751e-1f) * t - t;
  const float large = copysignf(1.0f - kiln_exp_f32(p), x);
  return a < 0.9277344f ? small : large;
}

#define kiln_exp_f64(x) exp(x)

/* out += a b, of m rows and n columns in sums of k; neighbours in a row of b and of out lie side by side. */
void kiln_product_f32(kiln_int m, kiln_int n, kiln_int k, const float *restrict a, kiln_int a_row, kiln_int a_col,
                      const float *restrict b, kiln_int b_row, float *restrict out, kiln_int out_row);
void kiln_product_f64(kiln_int m, kiln_int n, kiln_int k, const double *restrict a, kiln_int a_row, kiln_int a_col,
                      const double *restrict b, kiln_int b_row, double *restrict out, kiln_int out_row);
/* The sum of k products of neighbours. */
float kiln_dot_f32(kiln_int k, const float *restrict a, const float *restrict b);
double kiln_dot_f64(kiln_int k, const double *restrict a, const double *restrict b);
/* n scores to weights; where they may be hidden and all are, zeros. */
void kiln_softmax_f32(kiln_int n, float *restrict x, int hidden);
void kiln_softmax_f64(kiln_int n, double *restrict x, int hidden);

/* Philox4x32-10 (Salmon et al., 2011): the words of the random number at a position of a stream come first. */
typedef struct { uint32_t w[4]; } kiln_words;
static inline kiln_words kiln_random(int64_t at, int64_t seed, uint32_t numbers) {
  const uint64_t position = (uint64_t)at, block = position / numbers;
  const uint32_t turn = (uint32_t)(position % numbers) * 4 / numbers;
  kiln_words words;
  uint32_t c[4], k[2];
  int round;
  c[0] = (uint32_t)block, c[1] = (uint32_t)(block >> 32), c[2] = numbers - 1, c[3] = 0;
  k[0] = (uint32_t)seed, k[1] = (uint32_t)((uint64_t)seed >> 32);
  for (round = 0; round < 10; ++round) {
    const uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
    const uint32_t c0 = (uint32_t)(b >> 32) ^ c[1] ^ k[0], c2 = (uint32_t)(a >> 32) ^ c[3] ^ k[1];
    c[0] = c0, c[1] = (uint32_t)b, c[2] = c2, c[3] = (uint32_t)a;
    k[0] += 0x9e3779b9u, k[1] += 0xbb67ae85u;
  }
  for (round = 0; round < 4; ++round) words.w[round] = c[((uint32_t)round + turn) % 4];
  return words;
}
static inline int64_t kiln_random_bits(kiln_words x) { return (int64_t)(((uint64_t)x.w[1] << 32 | x.w[0]) >> 1); }
static inline float kiln_uniform_f32(kiln_words x) { return (float)(x.w[0] >> 8) * 5.9604644775390625e-8f; }
static inline double kiln_uniform_f64(kiln_words x) {
  return (double)(((uint64_t)x.w[1] << 32 | x.w[0]) >> 11) * 1.1102230246251565e-16;
}
static inline float kiln_normal_f32(kiln_words x) {
  const float u = ((float)(x.w[0] >> 1) + 1.0f) * 4.656612873077392578125e-10f;
  return (float)(sqrt(-2.0 * log((double)u))
                 * cos((double)((float)(x.w[1] >> 8) * 5.9604644775390625e-8f * 6.283185307179586f)));
}
static inline double kiln_normal_f64(kiln_words x) {
  const double u = 1.0 - kiln_uniform_f64(x);
  const double v = (double)(((uint64_t)x.w[3] << 32 | x.w[2]) >> 11) * 1.1102230246251565e-16;
  return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
