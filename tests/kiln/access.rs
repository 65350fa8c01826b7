//! Tensors from Rust values and back, and PyTorch's in-place names on cells.

use crate::vector;
use half::f16;
use kiln::{DType, ErrorKind, Tensor, Var};

#[test]
fn rust_values_become_tensors() {
    let check = |t: Tensor, dtype: DType, shape: &[usize]| {
        assert_eq!((t.dtype(), t.shape().unwrap()), (dtype, shape.to_vec()));
    };
    check(1.5f32.into(), DType::F32, &[]);
    check(Tensor::from(true), DType::Bool, &[]);
    check(Tensor::from([1i64, 2, 3]), DType::I64, &[3]);
    check(Tensor::from(vec![f16::ONE; 2]), DType::F16, &[2]);
    check(Tensor::from(&[1u8, 2][..]), DType::U8, &[2]);
    check(
        Tensor::from([[1.0f64, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        DType::F64,
        &[3, 2],
    );
    check(Tensor::from([[[1i32; 4]; 3]; 2]), DType::I32, &[2, 3, 4]);
    check(
        Tensor::from(vec![[1u8, 2], [3, 4], [5, 6]]),
        DType::U8,
        &[3, 2],
    );
    check(Tensor::from(vec![vec![1.0f32; 5]; 2]), DType::F32, &[2, 5]);
    check(Tensor::from(Vec::<Vec<f64>>::new()), DType::F64, &[0, 0]);
    let rows = Tensor::from(vec![vec![1i64, 2], vec![3, 4]]);
    assert_eq!(rows.to_vec::<i64>().unwrap(), [1, 2, 3, 4]);
    let ragged = Tensor::from(vec![vec![1i64, 2], vec![3]]);
    let e = ragged.to_vec::<i64>().unwrap_err().to_string();
    assert!(
        e.contains("row 0 has 2 elements, but row 1 has 1") && e.contains("access.rs"),
        "{e}"
    );
    check(Tensor::from([[0.0f32; 0]; 2]), DType::F32, &[2, 0]);
    let x = Tensor::from([[1i64, 2], [3, 4]]);
    assert_eq!(x.to_vec::<i64>().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn tensors_become_rust_values() {
    let x = vector(&[1.0, 2.0]);
    assert_eq!(Vec::<f32>::try_from(&x).unwrap(), [1.0, 2.0]);
    assert_eq!(f32::try_from(&x.i(1)).unwrap(), 2.0);
    assert_eq!(f64::try_from(&x).unwrap_err().kind(), ErrorKind::Value);
    assert!(f32::try_from(&x).is_err());
}

#[test]
fn sizes_have_pytorchs_names() {
    let x = Tensor::zeros([2, 3], DType::F64);
    assert_eq!(
        (x.numel().unwrap(), x.element_size(), x.nbytes().unwrap()),
        (6, 8, 48)
    );
    let y = x.exp();
    assert_eq!(y.memory_bytes(), 0);
    y.realize().unwrap();
    assert_eq!(y.memory_bytes(), 48);
    assert!(x.matmul(&x).numel().is_err());
}

#[test]
fn in_place_names_assign_to_cells() {
    let v = Var::new(vector(&[1.0, 2.0])).unwrap();
    let before = v.get();
    v.add_(1.0).unwrap();
    v.mul_(vector(&[2.0, 10.0])).unwrap();
    v.sub_(Tensor::scalar(1.0f32)).unwrap();
    v.div_(2).unwrap();
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [1.5, 14.5]);
    v.copy_(Tensor::from([7i64])).unwrap();
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [7.0, 7.0]);
    v.fill_(0.5).unwrap();
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [0.5, 0.5]);
    v.zero_().unwrap();
    assert_eq!(v.get().to_vec::<f32>().unwrap(), [0.0, 0.0]);
    assert_eq!(before.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn in_place_results_must_fit() {
    let v = Var::new(Tensor::from([1i64, 2])).unwrap();
    let e = v.add_(0.5).unwrap_err();
    assert!(
        e.message().contains("f32, which a Var of i64 can't hold"),
        "{e}"
    );
    assert!(e.to_string().contains("v.add_(0.5)"), "{e}");
    // A wider operand of the same kind does not widen the cell.
    v.add_(1).unwrap();
    let half = Var::new(vector(&[1.0]).to_dtype(DType::F16)).unwrap();
    half.add_(vector(&[1.0])).unwrap();
    assert_eq!(half.dtype(), DType::F16);
    let e = v.add_(Tensor::from([[1i64, 1], [1, 1]])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Assign);
    assert!(v.copy_(Tensor::from([1i64, 2, 3])).is_err());
    assert!(v.div_(2).is_err());
    assert_eq!(v.get().to_vec::<i64>().unwrap(), [2, 3]);
}

#[cfg(feature = "ndarray")]
#[test]
fn arrays_of_any_layout() {
    use ndarray::{Array, IxDyn, s};
    let a = Array::from_shape_fn((2, 3, 4), |(i, j, k)| (i * 12 + j * 4 + k) as i64);
    let t = Tensor::from_ndarray(&a);
    assert_eq!(t.shape().unwrap(), [2, 3, 4]);
    let odd = a.slice(s![..;-1, 1.., ..;-2]);
    let want = t.i((kiln::step(.., -1), 1.., kiln::step(.., -2)));
    let got = Tensor::from_ndarray(odd);
    assert_eq!(got.shape().unwrap(), [2, 2, 2]);
    assert_eq!(got.to_vec::<i64>().unwrap(), want.to_vec::<i64>().unwrap());
    let turned = Tensor::from_ndarray(a.t());
    let want = t.permute([2, 1, 0]).to_vec::<i64>().unwrap();
    assert_eq!(turned.to_vec::<i64>().unwrap(), want);
    assert_eq!(t.to_ndarray::<i64>().unwrap(), a.into_dyn());
    let empty = Tensor::from_ndarray(&Array::<f32, _>::zeros(IxDyn(&[0, 3])));
    assert_eq!(empty.to_ndarray::<f32>().unwrap().shape(), [0, 3]);
    assert!(t.to_ndarray::<f32>().is_err());
    assert_eq!(Tensor::from(2.0f32).to_ndarray::<f32>().unwrap()[[]], 2.0);
}
