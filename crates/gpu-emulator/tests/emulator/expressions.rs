//! Functions of CUDA's headers and library: each is compiled by NVRTC for two architectures, executed, and compared
//! with f64 or with the same function of Rust.

use crate::support::Gpu;
use half::{bf16, f16};
use kiln_base::special;

/// The requirement on a result.
enum Check {
    /// Within this number of units in the last place of an f32 of the function in f64.
    Near(fn(f64) -> f64, f64),
    /// Exactly this.
    Exact(fn(f32) -> f32),
    /// Within this absolute error of the function.
    Within(fn(f64) -> f64, f64),
    /// No requirement: it only has to run.
    Runs,
}

use Check::{Exact, Near, Runs, Within};

fn narrow(x: f64) -> f64 {
    x as f32 as f64
}

/// The functions, in terms of `x`, a float.
#[rustfmt::skip]
const EXPRESSIONS: &[(&str, Check)] = &[
    ("sinf(x)", Near(f64::sin, 4.0)),
    ("cosf(x)", Near(f64::cos, 4.0)),
    ("tanf(x)", Near(f64::tan, 5.0)),
    ("expf(x)", Near(f64::exp, 3.0)),
    ("exp2f(x)", Near(f64::exp2, 3.0)),
    ("exp10f(x)", Near(|x| 10f64.powf(x), 4.0)),
    ("expm1f(x)", Near(f64::exp_m1, 3.0)),
    ("logf(fabsf(x))", Near(|x| x.abs().ln(), 3.0)),
    ("log2f(fabsf(x))", Near(|x| x.abs().log2(), 3.0)),
    ("log10f(fabsf(x))", Near(|x| x.abs().log10(), 4.0)),
    ("log1pf(fabsf(x))", Near(|x| x.abs().ln_1p(), 3.0)),
    ("sqrtf(fabsf(x))", Exact(|x| x.abs().sqrt())),
    ("rsqrtf(fabsf(x))", Near(|x| 1.0 / x.abs().sqrt(), 2.0)),
    ("cbrtf(x)", Near(f64::cbrt, 2.0)),
    ("sinhf(x)", Near(f64::sinh, 4.0)),
    ("coshf(x)", Near(f64::cosh, 3.0)),
    ("tanhf(x)", Near(f64::tanh, 3.0)),
    ("asinf(x*0.09f)", Near(|x| narrow(x * 0.09f32 as f64).asin(), 3.0)),
    ("acosf(x*0.09f)", Near(|x| narrow(x * 0.09f32 as f64).acos(), 3.0)),
    ("atanf(x)", Near(f64::atan, 3.0)),
    ("asinhf(x)", Near(f64::asinh, 4.0)),
    ("acoshf(1.f+fabsf(x))", Near(|x| narrow(1.0 + x.abs()).acosh(), 5.0)),
    ("atanhf(x*0.09f)", Near(|x| narrow(x * 0.09f32 as f64).atanh(), 4.0)),
    ("powf(fabsf(x),1.7f)", Near(|x| x.abs().powf(1.7f32 as f64), 5.0)),
    ("fmodf(x,0.7f)", Exact(|x| x % 0.7)),
    ("floorf(x)", Exact(f32::floor)),
    ("ceilf(x)", Exact(f32::ceil)),
    ("rintf(x)", Exact(f32::round_ties_even)),
    ("roundf(x)", Exact(f32::round)),
    ("truncf(x)", Exact(f32::trunc)),
    ("sinf(x*1e6f)", Near(|x| narrow(x * 1e6).sin(), 4.0)),
    ("1.0f/(x+20.f)", Exact(|x| 1.0 / (x + 20.0))),
    ("__frcp_rn(x)", Exact(|x| 1.0 / x)),
    ("__frcp_ru(x)", Exact(|x| {
        let near = 1.0 / x;
        if (near as f64) < 1.0 / x as f64 { near.next_up() } else { near }
    })),
    ("__fdividef(x,3.f)", Near(|x| x / 3.0, 2.0)),
    ("hypotf(x,2.f)", Near(|x| x.hypot(2.0), 3.0)),
    ("atan2f(x,2.f)", Near(|x| x.atan2(2.0), 4.0)),
    ("(float)exp((double)x)", Near(f64::exp, 1.0)),
    ("(float)log(fabs((double)x))", Near(|x| x.abs().ln(), 1.0)),
    ("(float)sin((double)x)", Near(f64::sin, 1.0)),
    ("(float)pow(fabs((double)x),2.3)", Near(|x| x.abs().powf(2.3), 1.0)),
    ("(float)tanh((double)x)", Near(f64::tanh, 1.0)),
    ("(float)sqrt(fabs((double)x))", Near(|x| x.abs().sqrt(), 1.0)),
    ("(float)(1.0/(double)x)", Near(|x| 1.0 / x, 1.0)),
    ("(float)fmod((double)x,0.7)", Near(|x| x % 0.7, 1.0)),
    ("(float)cbrt((double)x)", Near(f64::cbrt, 1.0)),
    ("(float)((double)x/3.0)", Near(|x| x / 3.0, 1.0)),
    ("(float)rsqrt(fabs((double)x))", Near(|x| 1.0 / x.abs().sqrt(), 1.0)),
    ("__expf(x)", Near(f64::exp, 12.0)),
    ("__sinf(x)", Near(f64::sin, 2.0)),
    ("__logf(fabsf(x))", Near(|x| x.abs().ln(), 3.0)),
    ("__powf(fabsf(x),1.7f)", Near(|x| x.abs().powf(1.7f32 as f64), 12.0)),
    ("tanh_approx(x)", Near(f64::tanh, 2.0)),
    ("erff(x)", Near(special::erf, 3.0)),
    ("erfcf(x*0.5f)", Near(|x| special::erfc(0.5 * x), 8.0)),
    ("erfinvf(x*0.09f)", Near(|x| special::erfinv(narrow(x * 0.09f32 as f64)), 6.0)),
    ("lgammaf(fabsf(x))", Within(|x| special::lgamma(x.abs()), 6e-6)),
    ("tgammaf(fabsf(x)*0.3f)", Near(|x| special::lgamma(narrow(x.abs() * 0.3f32 as f64)).exp(), 12.0)),
    ("normcdff(x*0.3f)", Near(|x| 0.5 * special::erfc(-narrow(x * 0.3f32 as f64) * std::f64::consts::FRAC_1_SQRT_2), 12.0)),
    ("cyl_bessel_i0f(x)", Near(special::i0, 8.0)),
    ("j0f(x)", Runs),
    ("(float)erf((double)x)", Near(special::erf, 1.0)),
    ("(float)lgamma(fabs((double)x))", Within(|x| special::lgamma(x.abs()), 1e-6)),
    ("(float)tgamma((double)x)", Runs),
    ("remainderf(x,0.7f)", Exact(|x| {
        let (x, y) = (x as f64, 0.7f32 as f64);
        (-(x / y).round_ties_even()).mul_add(y, x) as f32
    })),
    ("nextafterf(x,30.f)", Exact(f32::next_up)),
    ("ldexpf(x,3)", Exact(|x| x * 8.0)),
    ("scalbnf(x,-140)", Exact(|x| (x as f64 * 2f64.powi(-140)) as f32)),
    ("(float)ilogbf(x)", Exact(|x| (x.to_bits() >> 23 & 0xff) as f32 - 127.0)),
    ("logbf(x)", Exact(|x| (x.to_bits() >> 23 & 0xff) as f32 - 127.0)),
    ("(float)isnan(x)", Exact(|_| 0.0)),
    ("(float)isinf(x)", Exact(|_| 0.0)),
    ("(float)(signbit(x)!=0)", Exact(|x| x.is_sign_negative() as u32 as f32)),
    ("copysignf(x,-1.f)", Exact(|x| -x.abs())),
    ("fmaf(x,x,x)", Exact(|x| x.mul_add(x, x))),
    ("fdimf(x,1.f)", Exact(|x| if x > 1.0 { x - 1.0 } else { 0.0 })),
    ("fmaxf(x,1.f)+fminf(x,-1.f)", Exact(|x| x.max(1.0) + x.min(-1.0))),
    ("__saturatef(x)", Exact(|x| x.clamp(0.0, 1.0))),
    ("(float)__float2int_rd(x)", Exact(f32::floor)),
    ("(float)__float2uint_rz(x)", Exact(|x| x as u32 as f32)),
    ("(float)__double2ll_rn((double)x)", Exact(f32::round_ties_even)),
    ("__int_as_float(__float_as_int(x)^1)", Exact(|x| f32::from_bits(x.to_bits() ^ 1))),
    ("(float)__clz((int)x)", Exact(|x| (x as i32).leading_zeros() as f32)),
    ("(float)__clzll((long long)x)", Exact(|x| (x as i64).leading_zeros() as f32)),
    ("(float)__popcll((long long)x)", Exact(|x| (x as i64).count_ones() as f32)),
    ("(float)__ffs((int)x)", Exact(|x| match x as i32 { 0 => 0.0, i => (i.trailing_zeros() + 1) as f32 })),
    ("(float)__byte_perm((int)x,7,0x5410)", Exact(|x| (x as i32 as u32 & 0xffff | 7 << 16) as f32)),
    ("(float)__funnelshift_l((int)x,5,3)", Exact(|x| (40 | x as i32 as u32 >> 29) as f32)),
    ("(float)__dp4a((int)x,(int)x,3)", Exact(|x| {
        let square = |b: i8| b as i32 * b as i32;
        (x as i32).to_le_bytes().map(|b| square(b as i8)).iter().sum::<i32>() as f32 + 3.0
    })),
    ("(float)__mulhi((int)x,1234567890)", Exact(|x| ((x as i32 as i64 * 1234567890) >> 32) as f32)),
    ("(float)__umul64hi((unsigned long long)fabsf(x),0x123456789abcdef0ull)", Exact(|x| ((x.abs() as u64 as u128 * 0x123456789abcdef0) >> 64) as f32)),
    ("(float)__usad((unsigned)fabsf(x),3u,4u)", Exact(|x| ((x.abs() as u32).abs_diff(3) + 4) as f32)),
    ("(float)((long long)x/7)", Exact(|x| (x as i64 / 7) as f32)),
    ("(float)((unsigned long long)fabsf(x)%7)", Exact(|x| (x.abs() as u64 % 7) as f32)),
    ("(float)((int)x/((int)x%3+5))", Exact(|x| (x as i32 / (x as i32 % 3 + 5)) as f32)),
    ("(float)((short)x*3)", Exact(|x| (x as i16 * 3) as f32)),
    ("(float)((signed char)(x*20.f))", Exact(|x| (x * 20.0) as i32 as i8 as f32)),
    ("(float)((unsigned char)(int)x)", Exact(|x| x as i32 as u8 as f32)),
    ("(float)(unsigned long long)(fabsf(x)*1e18f)", Exact(|x| (x.abs() * 1e18) as u64 as f32)),
    ("__half2float(__float2half(x))", Exact(|x| f16::from_f32(x).to_f32())),
    ("__half2float(__float2half_rz(x))", Exact(|x| {
        let near = f16::from_f32(x);
        let away = near.to_f32().abs() > x.abs();
        f16::from_bits(near.to_bits() - away as u16).to_f32()
    })),
    ("__half2float(__double2half((double)x))", Exact(|x| f16::from_f32(x).to_f32())),
    ("__half2float(hexp(__float2half(x)))", Within(|x| f16::from_f64(f16::from_f64(x).to_f64().exp()).to_f64(), 16.0)),
    ("__half2float(hsqrt(__float2half(fabsf(x))))", Within(|x| f16::from_f64(x.abs()).to_f64().sqrt(), 2e-3)),
    ("__half2float(htanh(__float2half(x)))", Within(|x| f16::from_f64(x).to_f64().tanh(), 1e-3)),
    ("__half2float(__hmul(__float2half(x),__float2half(2.f)))", Exact(|x| f16::from_f32(x).to_f32() * 2.0)),
    ("__low2float(__hmax2(__float2half2_rn(x),__float2half2_rn(0.f)))", Exact(|x| f16::from_f32(x).to_f32().max(0.0))),
    ("__high2float(__hfma2(__float2half2_rn(x),__float2half2_rn(x),__float2half2_rn(1.f)))", Exact(|x| {
        let x = f16::from_f32(x).to_f64();
        f16::from_f64(x * x + 1.0).to_f32()
    })),
    ("__bfloat162float(__float2bfloat16(x))", Exact(|x| bf16::from_f32(x).to_f32())),
    ("__bfloat162float(hexp(__float2bfloat16(x)))", Near(|x| bf16::from_f64(bf16::from_f64(x).to_f64().exp()).to_f64(), 70000.0)),
    ("__bfloat162float(__hfma(__float2bfloat16(x),__float2bfloat16(x),__float2bfloat16(x)))", Exact(|x| {
        let x = bf16::from_f32(x).to_f64();
        bf16::from_f64(x * x + x).to_f32()
    })),
    ("__bfloat162float(h2exp(__float2bfloat162_rn(x)).x)", Near(|x| bf16::from_f64(bf16::from_f64(x).to_f64().exp()).to_f64(), 70000.0)),
    ("__bfloat162float(__hadd(__float2bfloat16(x),__float2bfloat16(0.3f)))", Exact(|x| bf16::from_f32(bf16::from_f32(x).to_f32() + bf16::from_f32(0.3).to_f32()).to_f32())),
    ("__half2float(hrint(__float2half(x)))", Exact(|x| f16::from_f32(x).to_f32().round_ties_even())),
    ("(float)__half2int_rz(__float2half(x))", Exact(|x| f16::from_f32(x).to_f32().trunc())),
    ("__half2float(__habs(__float2half(x)))", Exact(|x| f16::from_f32(x).to_f32().abs())),
    ("(float)__hgt(__float2half(x),__float2half(1.f))", Exact(|x| (f16::from_f32(x) > f16::ONE) as u32 as f32)),
    ("(float)__vadd2((int)x,3)", Exact(|x| {
        let (low, high) = ((x as i32 as u16).wrapping_add(3), (x as i32 >> 16) as u16);
        ((high as u32) << 16 | low as u32) as f32
    })),
    ("(float)(int)__vmaxs4((int)x,3)", Exact(|x| {
        let pairs = (x as i32).to_le_bytes().into_iter().zip(3i32.to_le_bytes());
        let bytes: Vec<u8> = pairs.map(|(a, b)| (a as i8).max(b as i8) as u8).collect();
        i32::from_le_bytes(bytes.try_into().unwrap()) as f32
    })),
    ("(float)__nv_cvt_float_to_fp8(x,__NV_SATFINITE,__NV_E4M3)", Runs),
    ("__half2float(__half(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(int)fabsf(x),__NV_E4M3)))", Exact(|x| {
        // The smallest codes are multiples of 2^-9.
        let code = x.abs() as u32;
        if code < 8 { code as f32 / 512.0 } else { (8 + code % 8) as f32 / 512.0 }
    })),
    ("__fmul_rz(x,x)", Exact(|x| {
        let near = x * x;
        if near as f64 > x as f64 * x as f64 { near.next_down() } else { near }
    })),
    ("__fadd_ru(x,1e-9f)", Exact(|x| {
        let near = x + 1e-9;
        if (near as f64) < x as f64 + 1e-9f32 as f64 { near.next_up() } else { near }
    })),
    ("__fsqrt_rn(fabsf(x))", Exact(|x| x.abs().sqrt())),
    ("__fdiv_rn(x,3.f)", Exact(|x| x / 3.0)),
    ("(float)__dadd_rd((double)x,1.0)", Near(|x| x + 1.0, 1.0)),
    ("(float)__match_any_sync(~0u,(int)x/1000)", Exact(|_| u32::MAX as f32)),
    ("(float)(clock()>=0)", Exact(|_| 1.0)),
    ("x", Exact(|x| x)),
    ("checked(x)", Exact(|x| x)),
    ("not_inlined(x)", Exact(|x| x.mul_add(x, 1.0))),
    ("switched(x)", Exact(|x| match (x as i32) & 7 {
        0 => x + 1.0,
        1 => x * 3.0,
        2 => x - 7.0,
        3 => -x,
        4 => x * x,
        5 => 1.0 / x,
        6 => 5.0,
        _ => x.abs(),
    })),
];

/// The CUDA source of all of them: one kernel each.
pub fn source() -> String {
    let mut text = "\
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
__device__ float checked(float x) { if (!(x < 1e30f)) __trap(); return x; }
__device__ float tanh_approx(float x) { float y; asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(y) : \"f\"(x)); return y; }
__device__ __noinline__ float not_inlined(float x) { return x * x + 1.f; }
__device__ __noinline__ float switched(float x) {
  switch ((int)x & 7) {
    case 0: return x + 1.f;
    case 1: return x * 3.f;
    case 2: return x - 7.f;
    case 3: return -x;
    case 4: return x * x;
    case 5: return 1.f / x;
    case 6: return 5.f;
    default: return fabsf(x);
  }
}
"
    .to_string();
    for (i, (expression, _)) in EXPRESSIONS.iter().enumerate() {
        text += &format!(
            "extern \"C\" __global__ void e{i}(const float* a, float* o, int n) {{ \
             int i = blockIdx.x*blockDim.x+threadIdx.x; \
             if (i < n) {{ float x = a[i]; o[i] = {expression}; }} }}\n"
        );
    }
    text
}

fn check_all(fixture: &str) {
    let mut gpu = Gpu::load(fixture);
    let n = 1024;
    let x: Vec<f32> = (0..n).map(|i| (i as f32 - 512.0) / 51.3 + 0.001).collect();
    let mut wrong = Vec::new();
    for (i, (expression, check)) in EXPRESSIONS.iter().enumerate() {
        gpu.array(&x);
        let out = gpu.empty::<f32>(n);
        gpu.number((n as i32).to_le_bytes());
        if let Err(fault) = gpu.run(&format!("e{i}"), [4, 1, 1], 256, 0) {
            wrong.push(format!("{expression}: {fault}"));
            continue;
        }
        let got: Vec<f32> = gpu.read(out, n);
        let off = |i: usize| {
            let (x, got) = (x[i], got[i]);
            let (want, allowed) = match check {
                Exact(f) => (f(x) as f64, 0.0),
                Near(f, ulps) => {
                    let want = f(x as f64);
                    (want, ulps * (want.abs() * f32::EPSILON as f64).max(1.5e-45))
                }
                Within(f, allowed) => (f(x as f64), *allowed),
                Runs => return None,
            };
            // Where the f32 of the expected value overflows, the function may overflow too.
            let same = got as f64 == want || want.abs() > f32::MAX as f64 && got.is_infinite();
            let near = (got as f64 - want).abs() <= allowed;
            (!same && !near).then(|| format!("{expression} at {x} = {got}, not {want}"))
        };
        wrong.extend((0..n).find_map(off));
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn functions_of_sm_80() {
    check_all("expressions.sm_80.ptx");
}

#[test]
fn functions_of_sm_90a() {
    check_all("expressions.sm_90a.ptx");
}
