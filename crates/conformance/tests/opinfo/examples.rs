//! Worked examples of PyTorch's users, with their values.

use kiln_tensor::{
    Conv, CrossEntropy, DType, ErrorKind, Im2Col, Index, IntList, Nll, Reduction, RunningStats,
    Tensor, Var, cat, stack,
};

fn f32s(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape)
}

fn i64s(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape)
}

fn close(t: &Tensor, expected: &[f32]) {
    let values = t.to_vec::<f32>().unwrap();
    assert_eq!(values.len(), expected.len());
    for (a, b) in values.iter().zip(expected) {
        assert!((a - b).abs() < 1e-4, "{values:?} is not {expected:?}");
    }
}

#[test]
fn gather_takes_along_rows() {
    let x = Tensor::arange(1, 10, 1).reshape([3, 3]);
    let index = i64s(&[1, 1, 1, 1, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 2], &[3, 5]);
    let y = x.gather(1, &index).to_vec::<i64>().unwrap();
    assert_eq!(y, [2, 2, 2, 2, 2, 6, 4, 5, 6, 4, 8, 9, 7, 7, 9]);
}

#[test]
fn views_have_these_shapes() {
    let x = Tensor::zeros([4, 4], DType::F32);
    assert_eq!(x.view([-1, 8]).shape().unwrap(), [2, 8]);
    let x = Tensor::zeros([2, 3, 5], DType::F32);
    assert_eq!(x.permute([2, 0, 1]).shape().unwrap(), [5, 2, 3]);
    let (x, y) = (
        Tensor::zeros([3, 4, 4], DType::F32),
        Tensor::zeros([3, 1, 4], DType::F32),
    );
    assert_eq!(cat(&[&x, &y], 1).shape().unwrap(), [3, 5, 4]);
}

#[test]
fn stacks_index_as_expected() {
    let a = Tensor::arange(1, 10, 1).reshape([3, 3]);
    let parts = [&a, &(&a * 10), &(&a * 100)];
    let at = |dim: i64, i: i64, j: i64, k: i64| {
        let element = stack(&parts, dim).select(0, i).select(0, j).select(0, k);
        element.item::<i64>().unwrap()
    };
    assert_eq!(at(0, 2, 1, 0), 400);
    assert_eq!(at(1, 1, 2, 2), 600);
    assert_eq!(at(2, 1, 2, 1), 60);
}

#[test]
fn products_and_windows_have_these_shapes() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32);
    let product = zeros(&[10, 3, 4]).bmm(zeros(&[10, 4, 5]));
    assert_eq!(product.shape().unwrap(), [10, 3, 5]);
    let y = zeros(&[1, 3, 32, 32]).conv2d_with(zeros(&[16, 3, 3, 3]), Conv::new().padding(1));
    assert_eq!(y.shape().unwrap(), [1, 16, 32, 32]);
    let columns = zeros(&[1, 3, 224, 224]).im2col(Im2Col::new(4).stride(4));
    assert_eq!(columns.shape().unwrap(), [1, 48, 3136]);
}

#[test]
fn weighted_losses_divide_by_the_weights_of_the_targets() {
    let x = Tensor::arange(1.0, 10.0, 1.0).reshape([3, 3]);
    let log = x.log_softmax(1);
    close(&log.select(0, 1), &[-2.4076, -1.4076, -0.4076]);
    let (target, weight) = (i64s(&[0, 1, 2], &[3]), f32s(&[0.2, 0.4, 1.0], &[3]));
    let none = log.nll_loss_with(
        &target,
        Nll::new().weight(&weight).reduction(Reduction::None),
    );
    close(&none, &[0.4815, 0.5630, 0.4076]);
    let nll = log.nll_loss_with(&target, Nll::new().weight(&weight));
    close(&nll, &[0.9076]);
    let entropy = x.cross_entropy_with(&target, CrossEntropy::new().weight(&weight));
    close(&entropy, &[0.9076]);
}

#[test]
fn pdist_lists_pairs() {
    let x = f32s(&[3.0, 5.0, 4.0, 4.0, 6.0, 7.0], &[3, 2]);
    close(&x.pdist(), &[2f32.sqrt(), 3.6056, 3.6056]);
}

#[test]
fn a_mask_from_indices() {
    let hot = i64s(&[3, 7, 2], &[3]).one_hot(10).any(0);
    let mask = hot.to_vec::<bool>().unwrap();
    let set: Vec<usize> = (0..10).filter(|i| mask[*i]).collect();
    assert_eq!(set, [2, 3, 7]);
}

#[test]
fn a_class_out_of_range_names_the_call() {
    let labels = i64s(&[0, 4], &[2]);
    let (hot, line) = (labels.one_hot(4), line!());
    let error = hot.to_vec::<i64>().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    assert_eq!((error.op(), error.loc().line()), ("one_hot", line));
    let loss = Tensor::zeros([2, 4], DType::F32).cross_entropy(&labels);
    assert_eq!(loss.item::<f32>().unwrap_err().op(), "cross_entropy");
}

#[test]
fn a_negative_index_is_an_error() {
    let x = Tensor::arange(0, 4, 1);
    let y = x.index_select(0, i64s(&[-1], &[1]));
    assert_eq!(y.to_vec::<i64>().unwrap_err().kind(), ErrorKind::Data);
}

/// `batch_norm` of `[0, 2, 4, 6]` as two samples of one channel: mean 3, variance 5, unbiased 20/3.
fn normalised(training: bool, tracked: bool) -> (Vec<f32>, f32, f32) {
    let x = f32s(&[0.0, 2.0, 4.0, 6.0], &[2, 1, 2]);
    let mean = Var::new(f32s(&[1.0], &[1])).unwrap();
    let var = Var::new(f32s(&[4.0], &[1])).unwrap();
    let y = x.batch_norm_with(
        RunningStats::new()
            .running_mean(tracked.then(|| mean.clone()))
            .running_var(tracked.then(|| var.clone()))
            .training(training)
            .momentum(0.5)
            .eps(0.0),
    );
    let y = y.to_vec::<f32>().unwrap();
    let read = |var: &Var| var.get().item::<f32>().unwrap();
    (y, read(&mean), read(&var))
}

#[test]
fn batch_norm_has_four_ways() {
    let batch: Vec<f32> = [-3.0f32, -1.0, 1.0, 3.0]
        .iter()
        .map(|d| d / 5f32.sqrt())
        .collect();
    for (training, tracked) in [(true, true), (true, false), (false, false)] {
        let (y, ..) = normalised(training, tracked);
        close(&f32s(&y, &[4]), &batch);
    }
    let (_, mean, var) = normalised(true, true);
    close(
        &f32s(&[mean, var], &[2]),
        &[2.0, 0.5 * 4.0 + 0.5 * 20.0 / 3.0],
    );
    let (_, mean, var) = normalised(true, false);
    assert_eq!((mean, var), (1.0, 4.0));
    let (y, mean, var) = normalised(false, true);
    close(&f32s(&y, &[4]), &[-0.5, 0.5, 1.5, 2.5]);
    assert_eq!((mean, var), (1.0, 4.0));
}

#[test]
fn slices_are_pythons() {
    let x = Tensor::arange(0, 6, 1);
    let slice = |start: Option<i64>, end: Option<i64>, step: i64| {
        x.i(Index::Slice { start, end, step })
            .to_vec::<i64>()
            .unwrap()
    };
    assert_eq!(slice(Some(-3), None, 1), [3, 4, 5]);
    assert_eq!(slice(Some(1), Some(100), 2), [1, 3, 5]);
    assert_eq!(slice(None, None, -2), [5, 3, 1]);
    assert_eq!(slice(Some(1), Some(4), -1), [3, 2, 1]);
    assert!(slice(Some(4), Some(1), 1).is_empty());
}

#[test]
fn wrong_calls_say_what_is_wrong() {
    let x = Tensor::zeros([2, 3], DType::F32);
    let message = |t: Tensor| t.error().unwrap().message().to_string();
    assert_eq!(
        message(x.sum(2)),
        "dim 2 is out of range for f32[2, 3], which has 2 dims"
    );
    assert_eq!(
        message(x.reshape([4, -1])),
        "6 elements do not fill the shape [4, -1]"
    );
    let weight = Tensor::zeros([4, 3], DType::F64);
    assert_eq!(
        message(x.linear(&weight)),
        "the input is f32 but the weight is f64; cast one of them"
    );
    assert_eq!(IntList::from([1, 2]), IntList(vec![1, 2]));
}
