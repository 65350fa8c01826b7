//! NaN, signed zeros, integer rules and promotion, through the engine.

use crate::vector;
use kiln::{DType, ErrorKind, Tensor};

#[test]
fn nan_and_signed_zero_survive_fusion() {
    let x = vector(&[f32::NAN, -0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY]);
    let bits = |t: Tensor| {
        t.to_vec::<f32>()
            .unwrap()
            .iter()
            .map(|x| x.to_bits())
            .collect::<Vec<_>>()
    };
    // x + 0 is not x for -0, x * 0 is not 0 for NaN and infinities, x - x is not 0.
    assert_eq!(bits(&x + 0.0)[1], 0.0f32.to_bits());
    let product = (&x * 0.0).to_vec::<f32>().unwrap();
    assert!(product[0].is_nan() && product[3].is_nan() && product[4].is_nan());
    assert_eq!(product[1].to_bits(), (-0.0f32).to_bits());
    let difference = (&x - &x).to_vec::<f32>().unwrap();
    assert!(difference[0].is_nan() && difference[3].is_nan());
    assert_eq!(bits(-(&x))[2], (-0.0f32).to_bits());
    let relu = x.relu().to_vec::<f32>().unwrap();
    assert!(relu[0].is_nan() && relu[4] == 0.0);
    let (max, min) = (x.amax([0]), x.amin([0]));
    assert!(max.item::<f32>().unwrap().is_nan() && min.item::<f32>().unwrap().is_nan());
    assert_eq!(x.argmax(0).item::<i64>().unwrap(), 0);
}

#[test]
fn integers_follow_the_rules() {
    let int = |v: &[i32]| Tensor::from_slice(v, [v.len()]);
    let wrapped = (int(&[i32::MAX]) + int(&[1])).to_vec::<i32>().unwrap();
    assert_eq!(wrapped, [i32::MIN]);
    let u = Tensor::from_slice(&[200u8, 100], [2]);
    // A value wraps before it is used further, also inside one kernel.
    let sum = (&u + &u).to_dtype(DType::I32) + 0;
    assert_eq!(sum.to_vec::<i32>().unwrap(), [144, 200]);
    assert_eq!(
        int(&[-7, 7])
            .floor_divide(int(&[2, -2]))
            .to_vec::<i32>()
            .unwrap(),
        [-4, -4]
    );
    assert_eq!(
        int(&[-7, 7])
            .remainder(int(&[2, -2]))
            .to_vec::<i32>()
            .unwrap(),
        [1, -1]
    );
    assert_eq!(
        int(&[i32::MIN])
            .floor_divide(int(&[-1]))
            .to_vec::<i32>()
            .unwrap(),
        [i32::MIN]
    );
    let cast = vector(&[1.9, -1.9, f32::NAN, 3e10, -3e10]).to_dtype(DType::I32);
    assert_eq!(
        cast.to_vec::<i32>().unwrap(),
        [1, -1, 0, i32::MAX, i32::MIN]
    );
    let narrow = int(&[300, -1]).to_dtype(DType::U8);
    assert_eq!(narrow.to_vec::<u8>().unwrap(), [44, 255]);
}

#[test]
fn integer_division_by_zero_is_a_data_error_at_the_users_line() {
    let a = Tensor::from_slice(&[1i64, 2, 3], [3]);
    let b = Tensor::from_slice(&[1i64, 0, 3], [3]);
    let quotient = a.floor_divide(&b); // this line
    let e = (quotient + 1).to_vec::<i64>().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert!(e.to_string().contains("// this line"), "{e}");
}

#[test]
fn numbers_do_not_widen_tensors() {
    let half = vector(&[1.0]).to_dtype(DType::F16);
    assert_eq!((&half * 2.0).dtype(), DType::F16);
    let byte = Tensor::from_slice(&[1u8], [1]);
    assert_eq!((&byte + 1).dtype(), DType::U8);
    assert_eq!((&byte + 1.5).dtype(), DType::F32);
    assert_eq!((&byte + &half).dtype(), DType::F16);
    assert_eq!(
        (&half + vector(&[1.0]).to_dtype(DType::BF16)).dtype(),
        DType::F32
    );
    assert_eq!(byte.div(2).dtype(), DType::F32);
    let scalar = Tensor::scalar(2.0f64);
    assert_eq!((vector(&[1.0]) + scalar).dtype(), DType::F32);
}

#[test]
fn half_precision_rounds_at_kernel_boundaries() {
    let x = Tensor::from_slice(&[1.0f32, 2049.0, 1e-8], [3]).to_dtype(DType::F16);
    let x = x.to_vec::<half::f16>().unwrap();
    assert_eq!(x[1].to_f32(), 2048.0);
    let b = vector(&[1.003_906_3]).to_dtype(DType::BF16);
    assert_eq!(b.to_vec::<half::bf16>().unwrap()[0].to_f32(), 1.0);
}
