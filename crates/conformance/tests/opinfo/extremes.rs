//! Arguments far out of range give errors at the user's line, never panics or endless work.

use kiln_tensor::{DType, Diagonal, ErrorKind, PadMode, Tensor};

const FAR: i64 = 1 << 40;

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32)
}

/// The message of the error that this tensor carries; it must point at this file.
fn message(t: &Tensor) -> String {
    let error = t.error().expect("no error");
    assert_eq!(error.kind(), ErrorKind::Op);
    let loc = format!("{:?}", error.loc());
    assert!(loc.contains("extremes.rs"), "{loc}");
    error.message().to_string()
}

/// A view that no memory could hold a copy of.
fn hollow(dims: &[i64]) -> Tensor {
    zeros(&vec![1; dims.len()]).expand(dims)
}

#[test]
fn shapes_beyond_memory_are_errors() {
    let far = FAR as usize;
    for t in [
        zeros(&[far, far]),
        Tensor::ones([usize::MAX], DType::U8),
        Tensor::full([1i64 << 61, 2], 1.0, DType::F64),
        Tensor::eye((FAR, FAR), DType::F32),
        Tensor::rand([far, far], DType::F32),
        Tensor::randint(0, 2, [usize::MAX]),
        Tensor::arange(0, i64::MAX, 1),
        Tensor::arange_dtype(0.0, 1e30, 1.0, DType::F32),
    ] {
        message(&t);
    }
    assert!(message(&zeros(&[far, far])).contains("2^63 bytes"));
    assert_eq!(zeros(&[far, 0]).shape().unwrap(), [far, 0]);
}

#[test]
fn diagonals_far_out_are_empty_or_errors() {
    let x = zeros(&[3, 4]);
    for far in [i64::MIN, i64::MAX] {
        assert_eq!(x.diag_with(far).shape().unwrap(), [0]);
        assert_eq!(
            x.diagonal_with(Diagonal::new().offset(far))
                .shape()
                .unwrap(),
            [0]
        );
        assert!(message(&zeros(&[3]).diag_with(far)).contains("is outside of"));
        message(&x.diag_embed_with(Diagonal::new().offset(far).dim1(0).dim2(1)));
        message(&x.diag_embed_with(Diagonal::new().offset(far / 4).dim1(0).dim2(1)));
    }
    let ones = Tensor::ones([2, 2], DType::F32);
    let all = |t: Tensor| t.to_vec::<f32>().unwrap();
    assert_eq!(all(ones.tril_with(i64::MAX)), [1.0; 4]);
    assert_eq!(all(ones.triu_with(i64::MAX)), [0.0; 4]);
    assert_eq!(all(ones.tril_with(i64::MIN)), [0.0; 4]);
    assert_eq!(all(ones.triu_with(i64::MIN)), [1.0; 4]);
    message(&hollow(&[FAR, FAR]).diag());
    message(&hollow(&[FAR, FAR]).trace());
    message(&Tensor::tril_indices(FAR, 0));
    message(&Tensor::triu_indices(FAR, FAR));
}

#[test]
fn borders_far_out_are_errors() {
    let x = zeros(&[2, 3, 4]);
    let modes = [
        PadMode::ZEROS,
        PadMode::Reflect,
        PadMode::Replicate,
        PadMode::Circular,
    ];
    for mode in modes {
        for pad in [
            [i64::MIN, 0],
            [0, i64::MIN],
            [i64::MIN, i64::MIN],
            [i64::MAX, 0],
            [i64::MAX, i64::MAX],
            [0, i64::MAX / 2],
        ] {
            message(&x.pad(pad, mode));
        }
    }
}

#[test]
fn pooling_to_huge_sizes_is_an_error() {
    let x = zeros(&[0, 2, 3, 4]);
    for size in [i64::MAX, FAR, (1 << 30) + 1] {
        message(&x.adaptive_max_pool2d(size));
        message(&x.adaptive_avg_pool2d(size));
    }
    message(&hollow(&[0, 1, FAR, FAR]).adaptive_max_pool2d(2));
}

#[test]
fn long_lists_are_errors() {
    for steps in [i64::MAX, FAR] {
        message(&Tensor::linspace(0, 1, steps, DType::F32));
        message(&Tensor::logspace(0, 1, steps, 10.0, DType::F32));
    }
    message(&hollow(&[FAR, FAR]).pdist());
    assert!(message(&zeros(&[FAR as usize, 0]).pdist()).contains("rows"));
}

#[test]
fn prints_large_integers_exactly_and_empty_tensors_briefly() {
    let t = Tensor::from_slice(&[u64::MAX, 1], [2]);
    assert_eq!(
        t.to_string(),
        "tensor([18446744073709551615,                    1], dtype=u64)"
    );
    let t = Tensor::from_slice(&[i64::MAX], [1]);
    assert_eq!(t.to_string(), "tensor([9223372036854775807])");
    let empty = zeros(&[2_000_000, 0]).to_string();
    assert_eq!(empty, "tensor([], size=(2000000, 0))");
}

#[test]
fn errors_of_printing_point_at_the_user() {
    let zero = Tensor::from_slice(&[0i64], [1]);
    let text = Tensor::from_slice(&[1i64], [1])
        .floor_divide(&zero)
        .to_string();
    assert!(text.contains("extremes.rs"), "{text}");
    assert!(!text.contains("print.rs"), "{text}");
}
