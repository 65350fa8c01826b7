//! Arguments in the forms that people type.

use kiln::{DType, Tensor};

fn ones(shape: [usize; 4]) -> Tensor {
    Tensor::ones(shape, DType::F32)
}

#[test]
fn any_integer_is_a_size_a_count_or_a_position() {
    let x = Tensor::arange(0, 12, 1).reshape((3, 4));
    let (n, k, at) = (2usize, 3i32, 1u8);
    assert_eq!(x.narrow(at, n - 1, n as u32).shape().unwrap(), [3, 2]);
    assert_eq!(x.split(n, 1i64).len(), 2);
    assert_eq!(x.chunk(3usize, 0).len(), 3);
    assert_eq!(x.topk(n, 1, true, true).0.shape().unwrap(), [3, 2]);
    assert_eq!(x.unsqueeze(n).shape().unwrap(), [3, 4, 1]);
    assert_eq!(x.one_hot(12u64).shape().unwrap(), [3, 4, 12]);
    assert_eq!(x.slice(1, None, n, k).shape().unwrap(), [3, 1]);
    assert_eq!(x.slice(1, n, None, 1).shape().unwrap(), [3, 2]);
    assert_eq!(Tensor::randperm(n).shape().unwrap(), [2]);
    assert_eq!(x.transpose(0usize, -1).shape().unwrap(), [4, 3]);
}

#[test]
fn a_number_that_no_size_can_be_is_an_error() {
    let x = Tensor::arange(0, 12, 1);
    assert!(x.narrow(0, 0, usize::MAX).error().is_some());
    assert!(
        x.reshape([usize::MAX]).error().is_some(),
        "not \"any size\""
    );
    let wrong = Tensor::zeros([2, -3], DType::F32);
    let text = wrong.error().unwrap().to_string();
    assert!(
        text.contains("a size can't be negative in [2, -3]"),
        "{text}"
    );
    assert!(text.contains("calls.rs"), "{text}");
}

#[test]
fn shapes_are_arrays_slices_vectors_tuples_and_numbers() {
    let vec = vec![2usize, 3];
    let slice: &[i64] = &[2, 3];
    for x in [
        Tensor::zeros([2, 3], DType::F32),
        Tensor::zeros(&[2, 3], DType::F32),
        Tensor::zeros(&vec, DType::F32),
        Tensor::zeros(vec.clone(), DType::F32),
        Tensor::zeros(slice, DType::F32),
        Tensor::zeros((2usize, 3i64), DType::F32),
        Tensor::randn((2, 3), DType::F32),
        Tensor::arange(0, 6, 1).reshape(&vec),
        Tensor::arange(0, 6, 1).reshape((2usize, -1)),
        Tensor::arange(0, 6, 1).view(slice),
        Tensor::arange(0, 3, 1).expand(&vec),
        Tensor::arange(0, 3, 1).broadcast_to((2, -1)),
        Tensor::from_slice(&[0i64; 6], &vec),
        Tensor::from_slice(&[0i64; 6], (2, 3)),
        Tensor::zeros((3, 2), DType::F32).permute((1, 0)),
        Tensor::zeros((3, 2), DType::F32).permute(&vec![1, 0]),
    ] {
        assert_eq!(x.shape().unwrap(), [2, 3]);
    }
    assert_eq!(Tensor::zeros(4, DType::F32).shape().unwrap(), [4]);
    assert!(Tensor::zeros((), DType::F32).shape().unwrap().is_empty());
    assert_eq!(ones([1, 2, 3, 4]).reshape(24usize).shape().unwrap(), [24]);
}

#[test]
fn shapes_are_taken_apart() {
    let [n, c, h, w] = ones([2, 3, 4, 5]).size().unwrap();
    assert_eq!((n, c, h, w), (2, 3, 4, 5));
    let [] = Tensor::scalar(1.0f32).size().unwrap();
    let text = ones([2, 3, 4, 5]).size::<3>().unwrap_err().to_string();
    assert!(
        text.contains("the shape [2, 3, 4, 5] has 4 dims, not 3"),
        "{text}"
    );
    assert!(text.contains("calls.rs"), "{text}");
}
