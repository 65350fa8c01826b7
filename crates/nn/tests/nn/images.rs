//! Padding, resizing and pooling.

use crate::support::{assert_close, random, values};
use kiln_nn::*;
use kiln_tensor::{
    DType, GradCheck, Im2Col, InterpolateMode, InterpolateSize, Tensor, gradcheck_with,
};

/// 1, 2, 3, … in this shape.
fn counted(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>() as i64;
    let shape: Vec<i64> = shape.iter().map(|d| *d as i64).collect();
    let t = Tensor::arange(1, count + 1, 1).to_dtype(DType::F64);
    t.reshape(shape)
}

#[track_caller]
fn check(layer: &impl Forward, x: &Tensor, shape: &[usize], wanted: &[f64]) {
    let y = layer.call(x);
    assert_eq!(y.shape().unwrap(), shape);
    assert_eq!(values(&y), wanted);
}

#[track_caller]
fn check_gradient(layer: &impl Forward, x: &Tensor) {
    let bounds = GradCheck::new().atol(1e-7).rtol(1e-5);
    gradcheck_with(|x| layer.call(&x), x, bounds).unwrap();
}

#[test]
fn padding_holds_the_values_of_its_mode() {
    let x = counted(&[1, 1, 3]);
    check(
        &ZeroPad1d::new([2, 1]).unwrap(),
        &x,
        &[1, 1, 6],
        &[0.0, 0.0, 1.0, 2.0, 3.0, 0.0],
    );
    check(
        &ConstantPad1d::new(1, 9.5).unwrap(),
        &x,
        &[1, 1, 5],
        &[9.5, 1.0, 2.0, 3.0, 9.5],
    );
    check(
        &ReflectionPad1d::new([2, 1]).unwrap(),
        &x,
        &[1, 1, 6],
        &[3.0, 2.0, 1.0, 2.0, 3.0, 2.0],
    );
    check(
        &ReplicationPad1d::new([2, 1]).unwrap(),
        &x,
        &[1, 1, 6],
        &[1.0, 1.0, 1.0, 2.0, 3.0, 3.0],
    );
    check(
        &CircularPad1d::new([2, 1]).unwrap(),
        &x,
        &[1, 1, 6],
        &[2.0, 3.0, 1.0, 2.0, 3.0, 1.0],
    );
    check(
        &ZeroPad1d::new([-1, 0]).unwrap(),
        &x,
        &[1, 1, 2],
        &[2.0, 3.0],
    );

    // The last dim comes first: left, right, top, bottom.
    let x = counted(&[1, 2, 2]);
    let wanted = [0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0];
    check(
        &ZeroPad2d::new([1, 0, 0, 1]).unwrap(),
        &x,
        &[1, 3, 3],
        &wanted,
    );
    let wanted = [3.0, 3.0, 4.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0];
    let rows = ReflectionPad2d::new([0, 0, 1, 0]).unwrap().call(&x);
    check(
        &ReplicationPad2d::new([1, 0, 0, 0]).unwrap(),
        &rows,
        &[1, 3, 3],
        &wanted,
    );
    for n in [1usize, 3] {
        let x = random([2, 1, 3, 4, 3].map(|d| d.min(n + 2)));
        let each: [Box<dyn Forward>; 5] = [
            Box::new(ZeroPad3d::new(1).unwrap()),
            Box::new(ConstantPad3d::new([1, 0, 2, 1, 0, 1], -1.0).unwrap()),
            Box::new(ReflectionPad3d::new([1, 1, 0, 1, 1, 0]).unwrap()),
            Box::new(ReplicationPad3d::new([2, 0, 1, 1, 0, 3]).unwrap()),
            Box::new(CircularPad3d::new([1, 1, 0, 1, 1, 0]).unwrap()),
        ];
        for layer in each {
            check_gradient(&layer, &x);
        }
    }
    assert_eq!(
        ZeroPad2d::new(1).unwrap().to_string(),
        "ZeroPad2d((1, 1, 1, 1))"
    );
    let constant = ConstantPad1d::new([1, 2], 3.5).unwrap().to_string();
    assert_eq!(constant, "ConstantPad1d(padding=(1, 2), value=3.5)");

    let e = ZeroPad2d::new([1, 2]).err().unwrap().to_string();
    assert!(
        e.contains("one number or 4, not [1, 2]") && e.contains("images.rs"),
        "{e}"
    );
    let e = ReflectionPad1d::new(3).unwrap().call(counted(&[1, 1, 3]));
    assert!(e.error().is_some());
    let e = CircularPad2d::new(1).unwrap().call(counted(&[3]));
    assert!(e.error().unwrap().message().contains("no input of 1 dims"));
}

#[test]
fn images_grow_and_shrink() {
    let x = counted(&[1, 1, 2, 2]);
    let near = [
        1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 3.0, 3.0, 4.0, 4.0,
    ];
    check(&Upsample::scale(2.0).unwrap(), &x, &[1, 1, 4, 4], &near);
    let corners = InterpolateMode::Linear {
        align_corners: true,
    };
    let linear = [1.0, 1.5, 2.0, 2.0, 2.5, 3.0, 3.0, 3.5, 4.0];
    check(
        &Upsample::with(InterpolateSize::Size(3.into()), corners).unwrap(),
        &x,
        &[1, 1, 3, 3],
        &linear,
    );
    check_gradient(
        &Upsample::with(InterpolateSize::Size([3, 5].into()), corners).unwrap(),
        &random([2, 2, 2, 3]),
    );
    let text = Upsample::with(InterpolateSize::ScaleFactor(vec![2.0]), corners)
        .unwrap()
        .to_string();
    assert_eq!(
        text,
        "Upsample(scale_factor=2.0, mode='linear', align_corners=True)"
    );

    let x = counted(&[1, 4, 1, 2]);
    let wanted = [1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0];
    check(&PixelShuffle::new(2).unwrap(), &x, &[1, 1, 2, 4], &wanted);
    let back = PixelUnshuffle::new(2)
        .unwrap()
        .call(PixelShuffle::new(2).unwrap().call(&x));
    assert_eq!(values(&back), values(&x));
    let wanted = [1.0, 2.0, 5.0, 6.0, 3.0, 4.0, 7.0, 8.0];
    check(&ChannelShuffle::new(2).unwrap(), &x, &[1, 4, 1, 2], &wanted);
    assert!(PixelShuffle::new(3).unwrap().call(&x).error().is_some());
}

#[test]
fn folding_is_the_transpose_of_unfolding() {
    // Windows of 2 with stride 1: inner elements are in two of them.
    let ones = Tensor::ones([1, 2, 2], DType::F64);
    check(
        &Fold::new([1, 3], [1, 2]).unwrap(),
        &ones,
        &[1, 1, 1, 3],
        &[1.0, 2.0, 1.0],
    );
    let cases = [
        ([5, 6], [3, 2], [1, 1], [0, 0], [2, 2]),
        ([4, 7], [2, 3], [2, 1], [1, 2], [1, 3]),
    ];
    for (size, k, d, p, s) in cases {
        let x = random([2, 3, size[0], size[1]]);
        let unfold = Unfold::new(Im2Col::new(k).dilation(d).padding(p).stride(s)).unwrap();
        let fold = Fold::new(size, Im2Col::new(k).dilation(d).padding(p).stride(s)).unwrap();
        let columns = unfold.call(&x);
        let g = random(columns.shape().unwrap());
        // ⟨unfold x, g⟩ = ⟨x, fold g⟩
        let left = values(&(&columns * &g).sum(()));
        let right = values(&(&x * &fold.call(&g)).sum(()));
        assert_close(&left, &right, 1e-12);
        check_gradient(&fold, &g);
        let one = g.i(0);
        assert_eq!(values(&fold.call(&one)), values(&fold.call(&g).i(0)));
        let e = Fold::new(size, k)
            .unwrap()
            .call(&g)
            .error()
            .cloned()
            .unwrap();
        assert!(e.message().contains("takes [n, c · "), "{e}");
    }
    // Elements do not affect each other.
    let columns = Tensor::from([[[f32::INFINITY, 1.0], [2.0, 3.0]]]);
    let y = Fold::new([1, 4], Im2Col::new([1, 2]).stride(2))
        .unwrap()
        .call(&columns);
    assert_eq!(values(&y), [f64::INFINITY, 2.0, 1.0, 3.0]);
}

#[test]
fn pools_of_norms_and_pooling_undone() {
    let x = counted(&[1, 1, 5]);
    let wanted = [5f64.sqrt(), 5.0];
    assert_close(
        &values(&LPPool1d::new(2.0, 2).unwrap().call(&x)),
        &wanted,
        1e-12,
    );
    let ceil = LPPool1d::new(3.0, PowerPool::new(2).ceil_mode(true))
        .unwrap()
        .call(&x);
    let wanted = [9f64.cbrt(), 91f64.cbrt(), 5.0];
    assert_close(&values(&ceil), &wanted, 1e-12);
    let x = random([2, 2, 4, 5, 4]).abs() + 0.1;
    check_gradient(
        &LPPool3d::new(1.5, PowerPool::new([2, 3, 2]).stride(1)).unwrap(),
        &x,
    );
    let flat = LPPool2d::new(1.0, 2).unwrap().call(x.i(0));
    let sums = AvgPool2d::new(2).unwrap().call(x.i(0)) * 4.0;
    assert_close(&values(&flat), &values(&sums), 1e-12);

    let x = counted(&[1, 1, 4, 4]);
    let (y, indices) = MaxPool2d::new(2).unwrap().call_with_indices(&x);
    let back = MaxUnpool2d::new(2).unwrap().call((&y, &indices));
    let mut wanted = vec![0.0; 16];
    for i in [5, 7, 13, 15] {
        wanted[i] = i as f64 + 1.0;
    }
    assert_eq!(values(&back), wanted);
    let x = counted(&[1, 1, 5]);
    let (y, indices) = MaxPool1d::new(2).unwrap().call_with_indices(&x);
    let back = MaxUnpool1d::new(2).unwrap().call_with_size(&y, &indices, 5);
    assert_eq!(values(&back), [0.0, 2.0, 0.0, 4.0, 0.0]);
}
