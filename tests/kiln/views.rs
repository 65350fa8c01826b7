//! Views, strides and the conditions for views, by PyTorch's rules.

use crate::matrix;
use kiln::{DType, Diagonal, Strided, Tensor, Var, Window, step};

fn ones(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32)
}

#[track_caller]
fn assert_strides(t: &Tensor, strides: &[usize], contiguous: bool) {
    assert_eq!(t.stride().unwrap(), strides);
    assert_eq!(t.is_contiguous(), contiguous);
}

#[test]
fn strides_follow_the_chain_of_views() {
    let x = ones(&[2, 3, 5]);
    assert_strides(&x, &[15, 5, 1], true);
    assert_strides(&x.permute([2, 0, 1]), &[1, 15, 5], false);
    assert_eq!(x.permute([2, 0, 1]).shape().unwrap(), [5, 2, 3]);
    assert_strides(&x.transpose(0, 1).transpose(0, 1), &[15, 5, 1], true);
    assert_strides(&x.i((.., 1)), &[15, 1], false);
    assert_strides(&x.i(1), &[5, 1], true);
    assert_strides(&x.narrow(1, 1, 2), &[15, 5, 1], false);
    assert_strides(&x.i((.., .., step(.., 2))), &[15, 5, 2], false);
    assert_strides(&x.i(0).expand([4, 3, 5]), &[0, 5, 1], false);
    assert_strides(&ones(&[3, 1]).expand([-1, 4]), &[1, 0], false);
    assert_strides(&x.unsqueeze(1).squeeze(1), &[15, 5, 1], true);
    assert_strides(&x.flatten((0, 1)), &[5, 1], true);
    assert_strides(&x.transpose(1, 2).chunk(2, 0)[1], &[15, 1, 5], false);
    let t = ones(&[10, 10]).t();
    assert_strides(&t, &[1, 10], false);
    assert_strides(&t.contiguous(), &[10, 1], true);
    // Strides of axes of size 1 don't matter, and a tensor without elements is always contiguous.
    assert!(ones(&[1, 5]).t().is_contiguous());
    assert!(ones(&[3, 0, 2]).transpose(0, 2).is_contiguous());
    assert_strides(&ones(&[2, 0, 3]), &[3, 3, 1], true);
    assert_strides(&Tensor::scalar(1.0f32), &[], true);
}

#[test]
fn diagonals_windows_and_strided_parts_are_views() {
    let x = ones(&[2, 3, 4]);
    let turned = x.transpose(0, 2);
    assert_strides(
        &x.diagonal_with(Diagonal::new().dim1(1).dim2(2)),
        &[12, 5],
        false,
    );
    assert_strides(
        &x.diagonal_with(Diagonal::new().offset(1).dim2(2)),
        &[4, 13],
        false,
    );
    assert_strides(&turned.diagonal(), &[12, 5], false);
    assert_strides(&x.unfold(2, 2), &[12, 4, 1, 1], false);
    assert_strides(
        &turned.unfold(0, Window::new(2).step(2)),
        &[2, 4, 12, 1],
        false,
    );
    assert_strides(
        &x.as_strided(Strided::new([2, 2]).stride([1, 3])),
        &[1, 3],
        false,
    );
    // These copy, in PyTorch too.
    assert_strides(&ones(&[4, 4]).t().diag_with(1), &[1], true);
    assert_strides(&ones(&[3]).diag(), &[3, 1], true);
    let e = x.diagonal_with(Diagonal::new().dim1(1).dim2(2)).view(6);
    assert!(e.error().is_some(), "{e}");
}

#[test]
fn new_values_are_contiguous() {
    let t = matrix(3, 4).t();
    assert!((&t + 1.0).is_contiguous());
    assert!(t.flip(0).is_contiguous() && t.repeat([2, 2]).is_contiguous());
    assert!(Var::new(&t).unwrap().get().is_contiguous());
    // Reading changes nothing, nor does cloning.
    t.realize().unwrap();
    assert!(!t.is_contiguous() && !t.clone().is_contiguous());
    assert!(t.reshape([12]).is_contiguous() && !t.reshape([4, 1, 3]).is_contiguous());
}

#[test]
fn a_view_that_would_copy_is_an_error_that_names_reshape() {
    let x = matrix(4, 6);
    assert_eq!(x.view([-1, 8]).shape().unwrap(), [3, 8]);
    let e = x.t().view([24]).realize().unwrap_err();
    assert!(e.message().contains("use reshape"), "{e}");
    assert!(e.message().contains("strides [1, 6]"), "{e}");
    assert!(e.to_string().contains("views.rs"), "{e}");
    assert!(
        x.t()
            .view_as(Tensor::zeros([24], DType::F32))
            .error()
            .is_some()
    );
    let copied = x.t().contiguous().view([24]).to_vec::<f32>().unwrap();
    assert_eq!(copied, x.t().reshape([24]).to_vec::<f32>().unwrap());
    assert_eq!(copied[1], x.i((1, 0)).item::<f32>().unwrap());
    // Dims that are still contiguous can be joined, others can be split.
    assert!(x.i(1..3).view([12]).error().is_none());
    assert!(x.i((.., 1..3)).view([8]).error().is_some());
    assert!(x.i((.., 1..3)).view([2, 2, 2]).error().is_none());
    assert!(x.t().view([2, 3, 4]).error().is_none());
    assert!(x.i((.., ..1)).view([4]).error().is_none());
    assert!(x.i(0).expand([3, 6]).view([18]).error().is_some());
    // The error of a wrong count says so, not that a copy is needed.
    let e = x.t().view([5, 5]).realize().unwrap_err();
    assert!(!e.message().contains("reshape"), "{e}");
}

#[test]
fn sizes_are_inferred_and_refused() {
    let message = |t: Tensor| t.realize().unwrap_err().message().to_string();
    assert_eq!(ones(&[0, 3]).reshape([-1, 3]).shape().unwrap(), [0, 3]);
    assert!(message(ones(&[0, 3]).reshape([0, -1])).contains("could be any size"));
    assert!(message(ones(&[4]).reshape([-1, -1])).contains("more than one −1"));
    assert!(message(ones(&[4]).reshape([3, -1])).contains("do not fill"));
    assert_eq!(ones(&[]).reshape([-1]).shape().unwrap(), [1]);
    assert_eq!(ones(&[3, 1]).expand([2, -1, 4]).shape().unwrap(), [2, 3, 4]);
    assert!(message(ones(&[3]).expand([-1, 3])).contains("keeps no dim"));
    assert!(ones(&[3]).expand([4]).error().is_some());
    // The error is raised when the view is recorded, not when it is read.
    let absurd = ones(&[1]).expand([1i64 << 40, 1 << 40]);
    assert!(absurd.error().is_some());
    assert!(ones(&[2, 1]).squeeze(0).shape().unwrap() == [2, 1]);
    assert_eq!(ones(&[1, 2, 1]).squeeze_all().shape().unwrap(), [2]);
    assert_eq!(ones(&[2]).unsqueeze(-1).shape().unwrap(), [2, 1]);
}

#[test]
fn the_shape_of_an_open_size_is_an_error_at_the_users_line() {
    let spec = kiln::Spec::new(DType::F32, ("batch", 3));
    let shape = kiln::compile(&spec, |x| x.shape().map(|_| x.clone()));
    let e = shape.unwrap_err();
    assert!(e.to_string().contains("x.shape()"), "{e}");
    assert!(e.message().contains("f32[batch, 3]"), "{e}");
    let mismatch = kiln::compile(spec, |x| x.matmul(ones(&[2, 2])));
    let e = mismatch.unwrap_err().to_string();
    assert!(e.contains("f32[batch, 3]") && !e.contains("s0"), "{e}");
}
