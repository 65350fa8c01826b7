/* Functions that generated sources call. */
#include "kiln_c99.h"

/* Two rows and four terms at once, along columns: what is added to stays in registers or in the nearest cache. */
#define KILN_PRODUCT(name, type)                                                                    \
  void kiln_product_##name(kiln_int m, kiln_int n, kiln_int k, const type *restrict a, \
                                         kiln_int a_row, kiln_int a_col, const type *restrict b,    \
                                         kiln_int b_row, type *restrict out, kiln_int out_row) {    \
    kiln_int from, i, x, j;                                                                         \
    for (from = 0; from < n; from += 256) {                                                         \
      const kiln_int width = n - from < 256 ? n - from : 256;                                       \
      for (i = 0; i + 2 <= m; i += 2) {                                                             \
        const type *restrict p = a + i * a_row, *restrict q = p + a_row;                            \
        type *restrict s = out + i * out_row + from, *restrict t = s + out_row;                     \
        for (x = 0; x + 4 <= k; x += 4) {                                                           \
          const type *restrict b0 = b + x * b_row + from, *restrict b1 = b0 + b_row;                \
          const type *restrict b2 = b1 + b_row, *restrict b3 = b2 + b_row;                          \
          const type p0 = p[x * a_col], p1 = p[(x + 1) * a_col];                                    \
          const type p2 = p[(x + 2) * a_col], p3 = p[(x + 3) * a_col];                              \
          const type q0 = q[x * a_col], q1 = q[(x + 1) * a_col];                                    \
          const type q2 = q[(x + 2) * a_col], q3 = q[(x + 3) * a_col];                              \
          for (j = 0; j < width; ++j) {                                                             \
            s[j] = kiln_fma_##name(p3, b3[j], kiln_fma_##name(p2, b2[j],                            \
                   kiln_fma_##name(p1, b1[j], kiln_fma_##name(p0, b0[j], s[j]))));                  \
            t[j] = kiln_fma_##name(q3, b3[j], kiln_fma_##name(q2, b2[j],                            \
                   kiln_fma_##name(q1, b1[j], kiln_fma_##name(q0, b0[j], t[j]))));                  \
          }                                                                                         \
        }                                                                                           \
        for (; x < k; ++x) {                                                                        \
          const type *restrict b0 = b + x * b_row + from;                                           \
          const type p0 = p[x * a_col], q0 = q[x * a_col];                                          \
          for (j = 0; j < width; ++j) {                                                             \
            s[j] = kiln_fma_##name(p0, b0[j], s[j]);                                                \
            t[j] = kiln_fma_##name(q0, b0[j], t[j]);                                                \
          }                                                                                         \
        }                                                                                           \
      }                                                                                             \
      for (; i < m; ++i) {                                                                          \
        const type *restrict p = a + i * a_row;                                                     \
        type *restrict s = out + i * out_row + from;                                                \
        for (x = 0; x + 4 <= k; x += 4) {                                                           \
          const type *restrict b0 = b + x * b_row + from, *restrict b1 = b0 + b_row;                \
          const type *restrict b2 = b1 + b_row, *restrict b3 = b2 + b_row;                          \
          const type p0 = p[x * a_col], p1 = p[(x + 1) * a_col];                                    \
          const type p2 = p[(x + 2) * a_col], p3 = p[(x + 3) * a_col];                              \
          for (j = 0; j < width; ++j)                                                               \
            s[j] = kiln_fma_##name(p3, b3[j], kiln_fma_##name(p2, b2[j],                            \
                   kiln_fma_##name(p1, b1[j], kiln_fma_##name(p0, b0[j], s[j]))));                  \
        }                                                                                           \
        for (; x < k; ++x) {                                                                        \
          const type *restrict b0 = b + x * b_row + from;                                           \
          const type p0 = p[x * a_col];                                                             \
          for (j = 0; j < width; ++j) s[j] = kiln_fma_##name(p0, b0[j], s[j]);                      \
        }                                                                                           \
      }                                                                                             \
    }                                                                                               \
  }                                                                                                 \
  type kiln_dot_##name(kiln_int k, const type *restrict a, const type *restrict b) {  \
    type s[16] = {0};                                                                               \
    kiln_int x, l;                                                                                  \
    for (x = 0; x + 16 <= k; x += 16)                                                               \
      for (l = 0; l < 16; ++l) s[l] = kiln_fma_##name(a[x + l], b[x + l], s[l]);                    \
    for (l = 0; x + l < k; ++l) s[l] = kiln_fma_##name(a[x + l], b[x + l], s[l]);                   \
    for (x = 8; x > 0; x /= 2)                                                                      \
      for (l = 0; l < x; ++l) s[l] += s[l + x];                                                     \
    return s[0];                                                                                    \
  }                                                                                                 \
  void kiln_softmax_##name(kiln_int n, type *restrict x, int hidden) {                \
    type most = -(type)INFINITY, sum = 0;                                                           \
    kiln_int j;                                                                                     \
    for (j = 0; j < n; ++j) most = kiln_max_##name(most, x[j]);                                     \
    if (hidden && most == -(type)INFINITY) {                                                        \
      for (j = 0; j < n; ++j) x[j] = 0;                                                             \
      return;                                                                                       \
    }                                                                                               \
    for (j = 0; j < n; ++j) x[j] = kiln_exp_##name(x[j] - most);                                    \
    for (j = 0; j < n; ++j) sum += x[j];                                                            \
    sum = 1 / sum;                                                                                  \
    for (j = 0; j < n; ++j) x[j] *= sum;                                                            \
  }
KILN_PRODUCT(f32, float)
KILN_PRODUCT(f64, double)
