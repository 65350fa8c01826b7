
// Special functions, as the CPU computes them: in double precision, by the same formulas.


KILN_CALL double kiln_log_ndtr(double x) {
    const double half_root = 0.70710678118654752440;
    if (x < -1.0) return log(0.5 * erfcx(-x * half_root)) - 0.5 * x * x;
    return log1p(-0.5 * erfc(x * half_root));
}

#define kiln_one_minus_euler 0.42278433509846713
// Riemann's zeta(k) - 1 for k = 2, 3, ...
#define KILN_ZETA_MINUS_ONE { \
    0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993, 0.01734306198444914, \
    0.008349277381922827, 0.00407735619794434, 0.0020083928260822143, 0.0009945751278180853, \
    0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915, 6.124813505870483e-05, \
    3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06, 3.81729326499984e-06, \
    1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07, 2.38450502727733e-07, \
    1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08, 1.4901554828365043e-08, \
    7.45071178983543e-09, 3.725334024788457e-09 }
// Bernoulli's numbers of even index.
#define KILN_BERNOULLI { \
    1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0, -3617.0 / 510.0, \
    43867.0 / 798.0, -174611.0 / 330.0, 854513.0 / 138.0 }

// ln gamma(2 + z) for |z| <= 1/2.
KILN_FN double kiln_lgamma_near_two(double z) {
    const double c[27] = KILN_ZETA_MINUS_ONE;
    double sum = 0.0;
    for (int i = 26; i >= 0; --i) sum = c[i] / (i + 2.0) - z * sum;
    return z * (kiln_one_minus_euler + z * sum);
}
// lgamma for x > 0.
KILN_CALL double kiln_lgamma_right(double x) {
    if (x < 0.5) return kiln_lgamma_near_two(x) - log1p(x) - log(x);
    if (x < 1.5) return kiln_lgamma_near_two(x - 1.0) - log1p(x - 1.0);
    if (x < 8.0) {
        double product = 1.0;
        while (x >= 2.5) { x -= 1.0; product *= x; }
        return log(product) + kiln_lgamma_near_two(x - 2.0);
    }
    const double b[11] = KILN_BERNOULLI;
    double power = 1.0 / x, series = 0.0;
    for (int k = 0; k < 11; ++k) {
        double n = 2.0 * k + 2.0;
        series += b[k] / (n * (n - 1.0)) * power;
        power /= x * x;
    }
    return x * (log(x) - 1.0) - 0.5 * log(x) + 0.9189385332046728 + series;
}
KILN_CALL double kiln_lgamma(double x) {
    if (x != x) return x;
    if (fabs(x) == kiln_inf || (x <= 0.0 && x == floor(x))) return kiln_inf;
    if (fabs(x) < 1e-17) return -log(fabs(x));
    if (x > 0.0) return kiln_lgamma_right(x);
    return log(3.14159265358979323846 / fabs(x * sinpi(x - rint(x)))) - kiln_lgamma_right(-x);
}

// The derivative of ln gamma(2 + z) for |z| <= 1/2.
KILN_FN double kiln_digamma_near_two(double z) {
    const double c[27] = KILN_ZETA_MINUS_ONE;
    double sum = 0.0;
    for (int i = 26; i >= 0; --i) sum = c[i] - z * sum;
    return kiln_one_minus_euler + z * sum;
}
// digamma for x > 0.
KILN_CALL double kiln_digamma_right(double x) {
    if (x < 0.5) return kiln_digamma_near_two(x) - 1.0 / (1.0 + x) - 1.0 / x;
    if (x < 1.5) return kiln_digamma_near_two(x - 1.0) - 1.0 / x;
    if (x < 8.0) {
        double sum = 0.0;
        while (x >= 2.5) { x -= 1.0; sum += 1.0 / x; }
        return sum + kiln_digamma_near_two(x - 2.0);
    }
    const double b[11] = KILN_BERNOULLI;
    double square = 1.0 / (x * x), sum = 0.0;
    for (int k = 10; k >= 0; --k) sum = sum * square + b[k] / (2.0 * k + 2.0);
    return log(x) - 0.5 / x - square * sum;
}
KILN_CALL double kiln_digamma(double x) {
    if (x != x) return x;
    if (x == 0.0) return copysign((double)kiln_inf, -x);
    if (x > 0.0) return x == kiln_inf ? x : kiln_digamma_right(x);
    if (x == floor(x)) return kiln_nan;
    double f = x - rint(x);
    return kiln_digamma_right(1.0 - x) - 3.14159265358979323846 * (cospi(f) / sinpi(f));
}

// zeta for s > 1 and q > 0.
KILN_CALL double kiln_zeta_right(double s, double q) {
    double sum = 0.0, w = q;
    for (int k = 0; k < 10; ++k) {
        double term = pow(w, -s);
        sum += term;
        if (term <= 1e-17 * sum) return sum;
        w += 1.0;
    }
    double power = pow(w, -s);
    sum += pow(w, 1.0 - s) / (s - 1.0) + 0.5 * power;
    const double b[11] = KILN_BERNOULLI;
    double factor = power * s / (2.0 * w);
    for (int k = 0; k < 11; ++k) {
        double n = 2.0 * k + 2.0;
        double term = b[k] * factor;
        sum += term;
        if (fabs(term) <= 1e-17 * sum) break;
        factor *= (s + n - 1.0) * (s + n) / (w * w * (n + 1.0) * (n + 2.0));
    }
    return sum;
}
KILN_CALL double kiln_zeta(double s, double q) {
    if (s != s || q != q || s < 1.0) return kiln_nan;
    if (s == 1.0 || (q <= 0.0 && q == floor(q))) return kiln_inf;
    if (q > 0.0) return kiln_zeta_right(s, q);
    if (s != floor(s) || s == kiln_inf) return kiln_nan;
    double f = q - floor(q);
    double below = kiln_zeta_right(s, 1.0 - f) - kiln_zeta_right(s, 1.0 - q);
    return kiln_zeta_right(s, f) + (fmod(s, 2.0) == 0.0 ? below : -below);
}

// Modified Bessel functions: the power series below 20 and the asymptotic one beyond.

KILN_FN double kiln_bessel_series(double x, double order) {
    double square = 0.25 * x * x, term = 1.0, sum = 1.0, k = 0.0;
    while (term > 1e-17 * sum) {
        k += 1.0;
        term *= square / (k * (k + order));
        sum += term;
    }
    return sum;
}
KILN_FN double kiln_bessel_scaled(double x, double order) {
    double term = 1.0, sum = 1.0, k = 0.0;
    while (fabs(term) > 1e-17 && k < 40.0) {
        k += 1.0;
        double odd = 2.0 * k - 1.0;
        term *= (odd * odd - 4.0 * order * order) / (8.0 * k * x);
        sum += term;
    }
    return sum / sqrt(6.283185307179586 * x);
}
KILN_FN double kiln_bessel_grown(double y, double x) {
    double half = exp(0.5 * x);
    return half == kiln_inf ? half : y * half * half;
}
KILN_CALL double kiln_i0(double x) {
    double a = fabs(x);
    return a < 20.0 ? kiln_bessel_series(a, 0.0) : kiln_bessel_grown(kiln_bessel_scaled(a, 0.0), a);
}
KILN_CALL double kiln_i0e(double x) {
    double a = fabs(x);
    return a < 20.0 ? kiln_bessel_series(a, 0.0) * exp(-a) : kiln_bessel_scaled(a, 0.0);
}
KILN_CALL double kiln_i1(double x) {
    double a = fabs(x);
    return a < 20.0 ? 0.5 * x * kiln_bessel_series(a, 1.0) : copysign(kiln_bessel_grown(kiln_bessel_scaled(a, 1.0), a), x);
}
KILN_CALL double kiln_i1e(double x) {
    double a = fabs(x);
    return a < 20.0 ? 0.5 * x * kiln_bessel_series(a, 1.0) * exp(-a) : copysign(kiln_bessel_scaled(a, 1.0), x);
}
