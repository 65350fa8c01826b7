//! Well-known examples from PyTorch's documentation, with their values.

use crate::assert_close;
use kiln::{Conv, CrossEntropy, DType, Im2Col, Nll, Reduction, Tensor, cat, stack};

fn range(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_slice(&(1..=n as i64).collect::<Vec<_>>(), shape)
}

fn shape(t: Tensor) -> Vec<usize> {
    t.shape().unwrap()
}

#[test]
fn gather() {
    let index = Tensor::from([[1i64, 1, 1, 1, 1], [2, 0, 1, 2, 0], [1, 2, 0, 0, 2]]);
    let taken = range(&[3, 3]).gather(1, &index);
    let want = [2, 2, 2, 2, 2, 6, 4, 5, 6, 4, 8, 9, 7, 7, 9];
    assert_eq!(taken.to_vec::<i64>().unwrap(), want);
}

#[test]
fn scatter() {
    let src = range(&[3, 5]);
    let index = Tensor::from([[1i64, 1, 1, 1], [2, 0, 1, 2], [2, 0, 1, 2]]);
    let placed = Tensor::zeros([3, 3], DType::I64).scatter(1, &index, &src);
    // Of several values for one element, the last stays.
    let want = [0, 4, 0, 7, 8, 9, 12, 13, 14];
    assert_eq!(placed.to_vec::<i64>().unwrap(), want);
}

#[test]
fn views() {
    let f = |shape: &[usize]| Tensor::ones(shape, DType::F32);
    assert_eq!(shape(f(&[4, 4]).view([-1, 8])), [2, 8]);
    assert_eq!(shape(f(&[2, 3, 5]).permute([2, 0, 1])), [5, 2, 3]);
    assert!(!f(&[10, 10]).t().is_contiguous());
    assert_eq!(shape(cat(&[&f(&[3, 4, 4]), &f(&[3, 1, 4])], 1)), [3, 5, 4]);
    assert_eq!(shape(f(&[10, 3, 4]).bmm(f(&[10, 4, 5]))), [10, 3, 5]);
}

#[test]
fn stacked_matrices() {
    let a = range(&[3, 3]);
    let (b, c) = (&a * 10, &a * 100);
    let at = |dim: i64, i: (i64, i64, i64)| stack(&[&a, &b, &c], dim).i(i).item::<i64>().unwrap();
    assert_eq!(at(0, (2, 1, 0)), 400);
    assert_eq!(at(1, (1, 2, 2)), 600);
    assert_eq!(at(2, (1, 2, 1)), 60);
}

#[test]
fn sizes_of_convolutions_and_pools() {
    let f = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let conv = |x: &[usize], w: &[usize], pad: i64| {
        shape(f(x).conv2d_with(f(w), Conv::new().padding(pad)))
    };
    assert_eq!(conv(&[16, 1, 32, 32], &[6, 1, 5, 5], 0), [16, 6, 28, 28]);
    assert_eq!(conv(&[1, 3, 32, 32], &[16, 3, 3, 3], 0), [1, 16, 30, 30]);
    assert_eq!(conv(&[1, 3, 32, 32], &[16, 3, 3, 3], 1), [1, 16, 32, 32]);
    let pooled = f(&[30, 20, 32, 32]).max_pool2d(5);
    assert_eq!(shape(pooled), [30, 20, 6, 6]);
    let columns = f(&[1, 3, 224, 224]).im2col(Im2Col::new(4).stride(4));
    assert_eq!(shape(columns), [1, 48, 3136]);
}

#[test]
fn weighted_losses() {
    let x = range(&[3, 3]).to_dtype(DType::F32);
    let log = x.log_softmax(1);
    let row = [-2.4076f32, -1.4076, -0.4076];
    for r in 0..3 {
        let got = log.i(r).to_vec::<f32>().unwrap();
        assert!(
            got.iter().zip(row).all(|(a, b)| (a - b).abs() < 5e-5),
            "{got:?}"
        );
    }
    let (target, weight) = (Tensor::from([0i64, 1, 2]), Tensor::from([0.2f32, 0.4, 1.0]));
    let nll = |r| {
        log.nll_loss_with(&target, Nll::new().weight(&weight).reduction(r))
            .to_vec::<f32>()
            .unwrap()
    };
    let entropy = |r| {
        let loss = x.cross_entropy_with(&target, CrossEntropy::new().weight(&weight).reduction(r));
        loss.to_vec::<f32>().unwrap()
    };
    for loss in [nll(Reduction::None), entropy(Reduction::None)] {
        let want = [0.4815f32, 0.5630, 0.4076];
        assert!(
            loss.iter().zip(want).all(|(a, b)| (a - b).abs() < 5e-5),
            "{loss:?}"
        );
    }
    // The loss is divided by the weights of the targets.
    for loss in [nll(Reduction::Mean), entropy(Reduction::Mean)] {
        assert!((loss[0] - 0.9076).abs() < 5e-5, "{loss:?}");
    }
}

#[test]
fn distances_and_a_symmetric_matrix_of_them() {
    let points = Tensor::from([[3.0f32, 5.0], [4.0, 4.0], [6.0, 7.0]]);
    let pairs = points.pdist();
    let want = [2f32.sqrt(), 13f32.sqrt(), 13f32.sqrt()];
    assert_close(&pairs.to_vec::<f32>().unwrap(), &want);
    let above = Tensor::triu_indices_with(3, 3, 1);
    let upper = Tensor::zeros([3, 3], DType::F32).set((above.i(0), above.i(1)), &pairs);
    let full = &upper + upper.t();
    let got = full.to_vec::<f32>().unwrap();
    let [a, b, c] = want;
    assert_close(&got, &[0.0, a, b, a, 0.0, c, b, c, 0.0]);
}

#[test]
fn a_mask_from_indices() {
    let mask = Tensor::zeros([10], DType::Bool).set([3, 7, 2], true);
    let got = mask.to_vec::<bool>().unwrap();
    let places: Vec<usize> = (0..10).filter(|i| got[*i]).collect();
    assert_eq!(places, [2, 3, 7]);
}

#[test]
fn index_lists_read_and_assign() {
    let (t, u) = (Tensor::arange(0, 6, 1), Tensor::arange(10, 16, 1));
    let t = t.set([1, 3, 4], u.i([1, 3, 4]));
    let got = t.to_vec::<i64>().unwrap();
    assert_eq!(got, [0, 11, 2, 13, 14, 5]);
}
