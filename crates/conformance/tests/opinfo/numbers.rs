//! Functions of numbers and matrices beyond the samples: against the standard library, identities and
//! values worked out by hand.

use kiln_tensor::{
    DType, Factors, MatrixNorm, Strided, Tensor, block_diag, column_stack, dstack, explain, keep,
    multi_dot,
};

fn f32s(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()])
}

fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape)
}

fn close(t: &Tensor, expected: &[f64], tolerance: f64) {
    let values = t.to_dtype(DType::F64).to_vec::<f64>().unwrap();
    assert_eq!(values.len(), expected.len(), "{values:?}");
    for (a, b) in values.iter().zip(expected) {
        let same = a == b || a.is_nan() && b.is_nan();
        let near = (a - b).abs() <= tolerance * b.abs().max(1.0);
        assert!(same || near, "{values:?} is not {expected:?}");
    }
}

fn message(t: &Tensor) -> String {
    t.error().expect("no error").message().to_string()
}

/// Bit patterns all over a 64-bit range.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|i| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[test]
fn nextafter_is_the_next_number() {
    let mut xs: Vec<f32> = scattered(4000).map(|b| f32::from_bits(b as u32)).collect();
    xs.retain(|x| !x.is_nan());
    for n in 0..250 {
        let power = f32::from_bits(n << 23);
        xs.extend([power, -power, power.next_up(), power.next_down()]);
    }
    xs.extend([
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e-45,
        f32::MIN_POSITIVE,
    ]);
    for towards in [f32::INFINITY, f32::NEG_INFINITY] {
        let got = f32s(&xs)
            .nextafter(f32s(&[towards]))
            .to_vec::<f32>()
            .unwrap();
        for (x, got) in xs.iter().zip(got) {
            let want = if towards > 0.0 {
                x.next_up()
            } else {
                x.next_down()
            };
            let want = if *x == towards { *x } else { want };
            assert_eq!(got, want, "from {x:e} to {towards}");
        }
    }
    let mut xs: Vec<f64> = scattered(4000).map(f64::from_bits).collect();
    xs.retain(|x| !x.is_nan());
    for n in 0..2046 {
        let power = f64::from_bits(n << 52);
        xs.extend([power, -power, power.next_up(), power.next_down()]);
    }
    xs.extend([f64::MAX, f64::INFINITY, -0.0, 5e-324, 1e-310]);
    for towards in [f64::INFINITY, f64::NEG_INFINITY] {
        let got = f64s(&xs, &[xs.len()]).nextafter(f64s(&[towards], &[1]));
        for (x, got) in xs.iter().zip(got.to_vec::<f64>().unwrap()) {
            let want = if towards > 0.0 {
                x.next_up()
            } else {
                x.next_down()
            };
            let want = if *x == towards { *x } else { want };
            assert_eq!(got, want, "from {x:e} to {towards}");
        }
    }
    // 1 + 2⁻⁷ follows 1 in bf16.
    let one = f32s(&[1.0, 1.0, f32::NAN, 2.0]).to_dtype(DType::BF16);
    let to = f32s(&[2.0, 0.0, 1.0, 2.0]).to_dtype(DType::BF16);
    close(
        &one.nextafter(&to),
        &[1.0078125, 0.99609375, f64::NAN, 2.0],
        0.0,
    );
}

#[test]
fn frexp_and_ldexp_undo_each_other() {
    let mut xs: Vec<f64> = scattered(4000).map(f64::from_bits).collect();
    xs.retain(|x| x.is_finite());
    xs.extend([
        5e-324,
        -1e-310,
        1.0,
        0.5,
        2f64.next_down(),
        f64::MAX,
        2f64.powi(-1022),
    ]);
    let (mantissa, exponent) = f64s(&xs, &[xs.len()]).frexp();
    let (m, e) = (
        mantissa.to_vec::<f64>().unwrap(),
        exponent.to_vec::<i32>().unwrap(),
    );
    for i in 0..xs.len() {
        assert!((0.5..1.0).contains(&m[i].abs()), "{:e}: {}", xs[i], m[i]);
        let half = e[i] / 2;
        assert_eq!(m[i] * 2f64.powi(half) * 2f64.powi(e[i] - half), xs[i]);
    }
    let odd = f32s(&[0.0, f32::INFINITY, f32::NAN, -8.0, 1e-45]);
    let (m, e) = odd.frexp();
    close(&m, &[0.0, f64::INFINITY, f64::NAN, -0.5, 0.5], 0.0);
    assert_eq!(e.to_vec::<i32>().unwrap(), [0, 0, 0, 4, -148]);
    close(
        &m.ldexp(&e),
        &[0.0, f64::INFINITY, f64::NAN, -8.0, 2f64.powi(-149)],
        0.0,
    );
    assert_eq!(
        Tensor::arange(0, 3, 1)
            .ldexp(Tensor::arange(0, 3, 1))
            .dtype(),
        DType::F32
    );
}

#[test]
fn functions_at_special_numbers() {
    let pi = std::f64::consts::PI;
    let x = f64s(&[1.0, 0.25, -2.5, 0.0], &[4]);
    close(
        &x.polygamma(0),
        &[
            -0.5772156649015329,
            -4.227453533376265,
            1.103156640645243,
            f64::NEG_INFINITY,
        ],
        1e-14,
    );
    close(
        &x.polygamma(1).narrow(0, 0, 2),
        &[pi * pi / 6.0, 17.19732915450711],
        1e-14,
    );
    close(
        &x.polygamma(2).narrow(0, 0, 1),
        &[-2.4041138063191886],
        1e-14,
    );
    assert!(message(&x.polygamma(-1)).contains("negative"));
    close(
        &f64s(&[0.0, 0.5, 1.0, -1.5], &[4]).sinc(),
        &[1.0, 2.0 / pi, 0.0, -2.0 / (3.0 * pi)],
        1e-15,
    );
    let nan = f64::NAN;
    close(
        &f64s(&[0.0, 1.0, -1.0, nan, 0.5], &[5]).entr(),
        &[0.0, 0.0, f64::NEG_INFINITY, nan, 0.5 * 2f64.ln()],
        1e-15,
    );
    close(
        &f64s(&[0.0, -10.0, 40.0], &[3]).ndtr(),
        &[0.5, 7.619853024160526e-24, 1.0],
        1e-30,
    );
    close(
        &f64s(&[0.1, 1.0, 1.5], &[3]).logit(),
        &[-(9f64.ln()), f64::INFINITY, nan],
        1e-15,
    );
    close(
        &f64s(&[0.0, 0.5, 2.0], &[3]).logit_with(0.25),
        &[-(3f64.ln()), 0.0, 3f64.ln()],
        1e-15,
    );
    let zero = f64s(&[0.0, 0.0, 2.0, 0.0], &[4]);
    let y = f64s(&[0.0, nan, 0.0, -1.0], &[4]);
    close(&zero.xlogy(&y), &[0.0, nan, f64::NEG_INFINITY, 0.0], 0.0);
    close(
        &f64s(&[5.0], &[1]).mvlgamma(2),
        &[0.5 * pi.ln() + 24f64.ln() + 2.453736570842442],
        1e-14,
    );
    let (inf, x) = (
        f64::INFINITY,
        f64s(&[f64::INFINITY, -f64::INFINITY, 1000.0, nan], &[4]),
    );
    close(
        &x.logaddexp(f64s(&[inf, -inf, 1000.0, 1.0], &[4])),
        &[inf, -inf, 1000.0 + 2f64.ln(), nan],
        1e-15,
    );
    close(
        &x.logaddexp2(f64s(&[1.0, -inf, 1000.0, 1.0], &[4])),
        &[inf, -inf, 1001.0, nan],
        1e-15,
    );
    close(
        &x.fmax(f64s(&[1.0, nan, nan, 3.0], &[4])),
        &[inf, -inf, 1000.0, 3.0],
        0.0,
    );
    close(
        &x.hypot(f64s(&[nan, 1.0, 0.0, inf], &[4])),
        &[inf, inf, 1000.0, inf],
        0.0,
    );
}

#[test]
fn integers_become_floats_or_stay() {
    let x = Tensor::from_slice(&[-4i64, 0, 6, i64::MIN], [4]);
    for t in [
        x.lgamma(),
        x.erfc(),
        x.i0e(),
        x.sinc(),
        x.copysign(-1),
        x.xlogy(2),
    ] {
        assert_eq!(t.dtype(), DType::F32);
    }
    assert_eq!(x.float_power(2).dtype(), DType::F64);
    assert_eq!(x.gcd(6).to_vec::<i64>().unwrap(), [2, 6, 6, 2]);
    assert_eq!(x.gcd(0).to_vec::<i64>().unwrap(), [4, 0, 6, i64::MIN]);
    assert_eq!(
        x.narrow(0, 0, 3).lcm(-10).to_vec::<i64>().unwrap(),
        [20, 0, 30]
    );
    let bytes = Tensor::from_slice(&[-128i8, 100], [2]);
    assert_eq!(
        bytes
            .gcd(Tensor::from_slice(&[0i8, 75], [2]))
            .to_vec::<i8>()
            .unwrap(),
        [-128, 25]
    );
    assert_eq!(
        bytes
            .lcm(Tensor::from_slice(&[3i8, 7], [2]))
            .to_vec::<i8>()
            .unwrap(),
        [-128, -68]
    );
    assert_eq!(
        x.signbit().to_vec::<bool>().unwrap(),
        [true, false, false, true]
    );
    assert_eq!(
        f32s(&[-0.0, 0.0]).signbit().to_vec::<bool>().unwrap(),
        [true, false]
    );
    let signs = f32s(&[3.0, 3.0, -3.0]).copysign(f32s(&[-0.0, 0.0, 1.0]));
    close(&signs, &[-3.0, 3.0, 3.0], 0.0);
    let step = f32s(&[-1.0, 0.0, 2.0]).heaviside(f32s(&[0.25]));
    close(&step, &[0.0, 0.25, 1.0], 0.0);
    assert!(message(&x.heaviside(&step)).contains("i64"));
    assert!(message(&f32s(&[1.0]).gcd(2)).contains("only on integers"));
    assert!(message(&x.hypot(&x)).contains("only on floats"));
}

#[test]
fn rounding_to_decimals() {
    let x = f64s(&[1.2345, -0.125, 1250.0, f64::INFINITY], &[4]);
    close(
        &x.round_decimals(2),
        &[1.23, -0.12, 1250.0, f64::INFINITY],
        1e-15,
    );
    close(
        &x.round_decimals(-2),
        &[0.0, 0.0, 1200.0, f64::INFINITY],
        0.0,
    );
    assert!(Tensor::arange(0, 3, 1).round_decimals(1).error().is_some());
}

#[test]
fn exponentials_of_matrices() {
    let angle = 3000.0f64;
    let turn = f64s(&[0.0, -angle, angle, 0.0], &[2, 2]).matrix_exp();
    let (s, c) = angle.sin_cos();
    close(&turn, &[c, -s, s, c], 1e-9);
    let nilpotent = f64s(&[0.0, 2.0, 5.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0], &[3, 3]);
    close(
        &nilpotent.matrix_exp(),
        &[1.0, 2.0, 8.0, 0.0, 1.0, 3.0, 0.0, 0.0, 1.0],
        1e-14,
    );
    // Matrices of one batch that need 0 to 10 squarings.
    let sizes = [0.0, 0.1, 0.5, 0.7, 3.0, -40.0, 300.0];
    let x = f64s(&sizes, &[7, 1]).diag_embed();
    close(&x.matrix_exp().flatten(()), &sizes.map(f64::exp), 1e-12);
    let sum = f64s(&[1.0, 2.0, 3.0, -1.0], &[2, 2]);
    let product = sum.matrix_exp().matmul(sum.neg().matrix_exp());
    close(&product, &[1.0, 0.0, 0.0, 1.0], 1e-12);
    let f32_exp = sum.to_dtype(DType::F32).matrix_exp();
    close(&f32_exp, &sum.matrix_exp().to_vec::<f64>().unwrap(), 2e-6);
    let one = |x: f64| f64s(&[x], &[1, 1]).to_dtype(DType::BF16).matrix_exp();
    close(&one(1e6), &[f64::INFINITY], 0.0);
    close(&one(-1e6), &[0.0], 0.0);
    close(
        &f64s(&[1e6, 0.0, 0.0, 1e6], &[2, 2]).matrix_exp(),
        &[f64::NAN; 4],
        0.0,
    );
    assert!(message(&f64s(&[1.0; 6], &[2, 3]).matrix_exp()).contains("square"));
    assert_eq!(
        Tensor::zeros([2, 0, 0], DType::F32)
            .matrix_exp()
            .shape()
            .unwrap(),
        [2, 0, 0]
    );
}

#[test]
fn norms_and_powers_of_matrices() {
    let x = f64s(&[1.0, -2.0, 3.0, -4.0, 5.0, 6.0], &[2, 3]);
    let norm = |ord: MatrixNorm| x.matrix_norm(ord, [0, 1]).item::<f64>().unwrap();
    assert_eq!(norm(1.0.into()), 9.0);
    assert_eq!(norm((-1.0).into()), 5.0);
    assert_eq!(norm(f64::INFINITY.into()), 15.0);
    assert_eq!(norm(f64::NEG_INFINITY.into()), 6.0);
    assert_eq!(norm(MatrixNorm::Frobenius), 91f64.sqrt());
    let batch = x.reshape([1, 2, 3]).matrix_norm(1.0, keep([1, 2]));
    assert_eq!(batch.shape().unwrap(), [1, 1, 1]);
    // The squares of the two singular values add up to 91; their product is the root of det(x · xᵀ).
    let (large, small) = (norm(2.0.into()), norm((-2.0).into()));
    let gram = x.matmul(x.t()).det().item::<f64>().unwrap();
    assert!((large * large + small * small - 91.0).abs() < 1e-9);
    assert!((large * small - gram.sqrt()).abs() < 1e-9);
    let a = Tensor::from_slice(&[1i64, 1, 1, 0], [2, 2]);
    assert_eq!(
        a.matrix_power(10).to_vec::<i64>().unwrap(),
        [89, 55, 55, 34]
    );
    assert_eq!(a.matrix_power(0).to_vec::<i64>().unwrap(), [1, 0, 0, 1]);
    let v = Tensor::from_slice(&[2i64, -3], [2]).vander_with(4);
    assert_eq!(v.to_vec::<i64>().unwrap(), [1, 2, 4, 8, 1, -3, 9, -27]);
}

#[test]
fn products_of_chains_and_blocks() {
    let numbers = |rows: usize, columns: usize| {
        let values: Vec<i64> = (0..rows * columns)
            .map(|i| (i * 7 % 11) as i64 - 5)
            .collect();
        Tensor::from_slice(&values, [rows, columns])
    };
    let chain = [
        numbers(3, 17),
        numbers(17, 2),
        numbers(2, 13),
        numbers(13, 5),
    ];
    let all: Vec<&Tensor> = chain.iter().collect();
    let one_by_one = chain[0]
        .matmul(&chain[1])
        .matmul(&chain[2])
        .matmul(&chain[3]);
    let expected = one_by_one.to_vec::<i64>().unwrap();
    assert_eq!(multi_dot(&all).to_vec::<i64>().unwrap(), expected);
    let row = chain[0].select(0, 0);
    let column = chain[3].select(1, 4);
    let number = multi_dot(&[&row, &chain[1], &chain[2], &column]);
    assert_eq!(
        (number.ndim(), number.item::<i64>().unwrap()),
        (0, expected[4])
    );
    assert!(message(&multi_dot(&[&row])).contains("at least 2"));

    let (a, b, c) = (numbers(2, 1), Tensor::arange(1, 3, 1), Tensor::scalar(9i64));
    let d = block_diag(&[&a, &b, &c]);
    assert_eq!(
        d.to_vec::<i64>().unwrap(),
        [-5, 0, 0, 0, 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]
    );
    assert_eq!(
        column_stack(&[&b, &a]).to_vec::<i64>().unwrap(),
        [1, -5, 2, 2]
    );
    assert_eq!(dstack(&[&b, &b]).shape().unwrap(), [1, 2, 2]);
    assert_eq!(b.atleast_3d().shape().unwrap(), [1, 2, 1]);
    assert_eq!(c.atleast_2d().shape().unwrap(), [1, 1]);
    let k = b.kron(numbers(2, 2));
    assert_eq!(k.to_vec::<i64>().unwrap(), [-5, 2, -10, 4, -2, 5, -4, 10]);
    assert_eq!(k.shape().unwrap(), [2, 4]);
    let (x, y) = (
        Tensor::from_slice(&[1i64, 0, 0], [3]),
        Tensor::from_slice(&[0i64, 1, 0], [3]),
    );
    assert_eq!(x.cross(&y, 0).to_vec::<i64>().unwrap(), [0, 0, 1]);
}

#[test]
fn strides_on_the_row_major_order() {
    let x = Tensor::arange(0, 6, 1).reshape([2, 3]);
    let windows = x.as_strided(Strided::new([3, 2]).stride([2, 1]));
    assert_eq!(windows.to_vec::<i64>().unwrap(), [0, 1, 2, 3, 4, 5]);
    let again = x
        .t()
        .as_strided(Strided::new([2, 2]).stride([0, 3]).storage_offset(1));
    assert_eq!(again.to_vec::<i64>().unwrap(), [3, 2, 3, 2]);
    assert!(message(&x.as_strided(Strided::new([3]).stride([3]))).contains("beyond"));
    assert!(message(&x.as_strided(Strided::new([i64::MAX, 2]).stride([1, 1]))).contains("2^63"));
    assert_eq!(
        x.as_strided(Strided::new([0, 2]).stride([9, 9]).storage_offset(3))
            .shape()
            .unwrap(),
        [0, 2]
    );
}

#[test]
fn sums_with_products() {
    let (x, nan) = (f32s(&[1.0, 2.0]), f32s(&[f32::NAN]));
    close(
        &nan.addr_with(&x, &x, Factors::new().beta(0).alpha(2)),
        &[2.0, 4.0, 4.0, 8.0],
        0.0,
    );
    let t = Tensor::from_slice(&[true, false], [2]);
    assert_eq!(
        t.addr_with(&t, &t, Factors::new().beta(0))
            .to_vec::<bool>()
            .unwrap(),
        [true, false, false, false]
    );
    let batch = Tensor::arange(0.0, 12.0, 1.0).reshape([2, 2, 3]);
    let product = batch.bmm(batch.transpose(1, 2)).sum(0).add(1.0);
    let one = f32s(&[1.0]).addbmm(&batch, batch.transpose(1, 2));
    close(
        &one,
        &product.to_dtype(DType::F64).to_vec::<f64>().unwrap(),
        0.0,
    );
    let w = Tensor::arange(0.0, 12.0, 1.0).reshape([2, 2, 3]);
    let (a, b) = (f32s(&[1.0, -1.0]), f32s(&[1.0, 2.0, 3.0]));
    close(
        &a.bilinear_with(&b, &w, f32s(&[0.5, 0.0])),
        &[-17.5, -18.0],
        0.0,
    );
}

#[test]
fn a_chain_of_special_functions_is_one_kernel() {
    let x = f32s(&[0.5, 1.5, 2.5]);
    let y = x
        .lgamma()
        .copysign(x.digamma())
        .hypot(x.ndtr())
        .logaddexp(x.sinc());
    let text = explain(&y).unwrap().to_string();
    let kernels = text.lines().filter(|l| l.contains("kernel")).count();
    assert_eq!(kernels, 1, "{text}");
}
