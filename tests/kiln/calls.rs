//! Arguments in the forms that users write.

use kiln::nn::optim::{Adam, Optimizer};
use kiln::{
    DType, PadSequence, Spec, Tensor, TopK, Var, cat, compile, einsum, pad_sequence,
    pad_sequence_with, stack,
};

fn floats(t: impl std::borrow::Borrow<Tensor>) -> Vec<f32> {
    t.borrow().to_vec().unwrap()
}

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
    assert_eq!(x.topk(TopK::new(n).dim(1)).0.shape().unwrap(), [3, 2]);
    assert_eq!(x.unsqueeze(n).shape().unwrap(), [3, 4, 1]);
    assert_eq!(x.one_hot(12u64).shape().unwrap(), [3, 4, 12]);
    assert_eq!(
        x.i((.., kiln::step(..n, k.into()))).shape().unwrap(),
        [3, 1]
    );
    assert_eq!(x.i((.., n..)).shape().unwrap(), [3, 2]);
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
        Tensor::zeros([2, 3], DType::F32),
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
        Tensor::zeros((3, 2), DType::F32).permute(vec![1, 0]),
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

#[test]
fn tensors_and_cells_are_given_by_value_or_by_reference() {
    let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    let w = Var::parameter(&x).unwrap();
    let expected = floats(x.matmul(&x));
    for y in [
        x.matmul(x.clone()),
        x.matmul(&w),
        x.matmul(w.clone()),
        &w * 1 + x.matmul(&x) - &w,
    ] {
        assert_eq!(floats(y), expected);
    }
    assert_eq!(floats(x.gather(1, x.argmax(1).unsqueeze(1))), [2.0, 4.0]);
    assert_eq!(floats(x.maximum(&w * 2)), floats(&x * 2));
    let y = x.linear(&w).sum(());
    y.backward().unwrap();
    assert!(
        w.grad().is_some(),
        "gradients flow to a cell that is an argument"
    );
}

#[test]
fn a_list_of_tensors_is_any_iterable() {
    let parts = Tensor::arange(0, 6, 1).split(2, 0);
    let refs: Vec<&Tensor> = parts.iter().collect();
    let whole: Vec<i64> = (0..6).collect();
    for y in [
        cat(&parts, 0),
        cat(&parts[..], 0),
        cat(&refs, 0),
        cat([&parts[0], &parts[1], &parts[2]], 0),
        cat(parts.iter().map(|p| p * 1), 0),
        stack(&parts, 0).reshape(-1),
        cat(parts.clone(), 0),
    ] {
        assert_eq!(y.to_vec::<i64>().unwrap(), whole);
    }
    assert_eq!(einsum("i,i->", &parts[..2]).item::<i64>().unwrap(), 3);
    let none: Vec<Tensor> = Vec::new();
    let text = cat(&none, 0).error().unwrap().to_string();
    assert!(
        text.contains("at least one tensor") && text.contains("calls.rs"),
        "{text}"
    );
}

#[test]
fn operators_take_numbers_of_all_types_and_iterators_are_summed() {
    let x = Tensor::from([2.0f32, 4.0]);
    let (lr, n) = (0.5f32, 2usize);
    assert_eq!(floats(&x * lr), [1.0, 2.0]);
    assert_eq!(floats(&x / n), [1.0, 2.0]);
    assert_eq!((&x / n).dtype(), DType::F32);
    assert_eq!(floats((2 * &x + 1.0) % 4u8), [1.0, 1.0]);
    let [a, b] = [
        Tensor::from([true, true, false]),
        Tensor::from([true, false, false]),
    ];
    assert_eq!((&a & &b).to_vec::<bool>().unwrap(), [true, false, false]);
    assert_eq!((&a | &b).to_vec::<bool>().unwrap(), [true, true, false]);
    assert_eq!((&a ^ &b).to_vec::<bool>().unwrap(), [false, true, false]);
    assert_eq!(
        (!(a & true)).to_vec::<bool>().unwrap(),
        [false, false, true]
    );
    let i = Tensor::from([6i64, 3]);
    assert_eq!((!&i | (&i << 1) >> 1).to_vec::<i64>().unwrap(), [-1, -1]);
    assert_eq!(floats([&x, &x].into_iter().sum::<Tensor>()), [4.0, 8.0]);
    assert_eq!(floats((0..3).map(|k| &x * k).sum::<Tensor>()), [6.0, 12.0]);
    let none: Tensor = std::iter::empty::<Tensor>().sum();
    assert_eq!(floats(none + &x), [2.0, 4.0]);
}

#[test]
fn operators_that_assign() {
    let mut x = Tensor::from([2.0f32, 4.0]);
    let before = x.clone();
    x += 1;
    x *= &before;
    assert_eq!(floats(&x), [6.0, 20.0]);
    assert_eq!(floats(&before), [2.0, 4.0], "a tensor never changes");
    let mut w = Var::parameter(&before).unwrap();
    let same = w.clone();
    w -= &before * 0.5;
    w /= 2usize;
    assert_eq!(
        floats(same.get()),
        [0.5, 1.0],
        "a cell does, for all its handles"
    );
    assert_eq!(w.to_string(), same.get().to_string());
    assert!(w.to_string().starts_with("tensor([0.5000, 1.0000]"), "{w}");
}

#[test]
fn an_operator_that_can_not_assign_leaves_its_error_in_the_cell() {
    let mut w = Var::new(Tensor::from([1i64, 2])).unwrap();
    w += 0.5;
    let text = w.get().to_vec::<i64>().unwrap_err().to_string();
    assert!(text.contains("which a Var of i64 can't hold"), "{text}");
    assert!(text.contains("calls.rs"), "{text}");
    assert!((&w + 1).error().is_some());
    w.assign(Tensor::from([3i64, 4])).unwrap();
    w += 1;
    assert_eq!(w.get().to_vec::<i64>().unwrap(), [4, 5]);
}

#[test]
fn a_cell_has_the_methods_of_a_tensor() {
    let w = Var::parameter(Tensor::from([[1.0f32, -2.0], [3.0, 4.0]])).unwrap();
    assert_eq!(floats(w.t()), [1.0, 3.0, -2.0, 4.0]);
    assert_eq!(floats(w.sort(1).0), [-2.0, 1.0, 3.0, 4.0]);
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0, -2.0, 3.0, 4.0]);
    assert_eq!(w.sum(()).item::<f64>().unwrap(), 6.0);
    // Gradients flow to the cell, and computed values stay when the cell changes.
    let norm = w.square().sum(());
    let old = w.flatten(());
    norm.backward().unwrap();
    w.sub_(w.grad().unwrap() * 0.5).unwrap();
    assert_eq!(floats(&old), [1.0, -2.0, 3.0, 4.0]);
    assert_eq!(floats(w.detach()), [0.0; 4]);
    assert!(w.abs().requires_grad() && !w.detach().requires_grad());
    // A compiled function reads the cell's value at each run.
    let f = compile(Spec::new(DType::F32, [2]), |x| x.matmul(w.t())).unwrap();
    let ones = Tensor::ones([2], DType::F32);
    assert_eq!(floats(f.run(&ones).unwrap()), [0.0; 2]);
    w.fill_(2).unwrap();
    assert_eq!(floats(f.run(&ones).unwrap()), [4.0; 2]);
    let text = w.reshape([3]).error().unwrap().to_string();
    assert!(text.contains("calls.rs"), "{text}");
}

#[test]
fn views_in_place_change_shape_value_and_gradient() {
    let w = Var::parameter(Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]])).unwrap();
    w.set_name("w");
    let (old, x) = (w.get(), Tensor::ones([3], DType::F32));
    let compiled = compile(&x, |x| x.matmul(w.t())).unwrap();
    let mut adam = Optimizer::new([&w], Adam::new()).unwrap();
    let grown = || (w.get() * w.detach()).sum(()).backward();
    grown().unwrap();
    adam.step().unwrap();
    w.assign(old.detach()).unwrap();
    w.t_().unwrap();
    let (shape, now) = (w.dims().to_vec(), floats(w.get()));
    assert_eq!(
        (shape, w.shape().unwrap()),
        (vec![3.into(), 2.into()], vec![3, 2])
    );
    assert_eq!(now, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(floats(w.grad().unwrap()), now);
    // Gradients go on; a snapshot keeps its shape, and its gradient fits no more.
    grown().unwrap();
    assert_eq!(floats(w.grad().unwrap()), [2.0, 8.0, 4.0, 10.0, 6.0, 12.0]);
    assert_eq!(old.shape().unwrap(), [2, 3]);
    let stale = [
        old.sum(()).backward().unwrap_err(),
        adam.step().unwrap_err(),
        compiled.run(&x).unwrap_err(),
    ]
    .map(|e| e.to_string());
    let was = "`w` is f32[3, 2] now, but was f32[2, 3] when";
    assert!(
        stale[0].contains(was) && stale[2].contains(was),
        "{stale:?}"
    );
    assert!(
        stale[1].contains("[3, 2]") && stale[1].contains("[2, 3]"),
        "{stale:?}"
    );
    assert_eq!(floats(w.get()), now);
    // The other views, there and back, and the refusals.
    w.transpose_(-1, 0).unwrap();
    w.unsqueeze_(1).unwrap();
    assert_eq!(w.shape().unwrap(), [2, 1, 3]);
    assert!(w.t_().is_err() && w.squeeze_(7).is_err());
    let inside = compile((), |()| w.squeeze_(1));
    assert!(
        inside
            .unwrap_err()
            .message()
            .contains("can't change inside compile")
    );
    w.squeeze_(1).unwrap();
    assert_eq!(floats(w.get()), floats(&old));
    adam.zero_grad();
    grown().unwrap();
    adam.step().unwrap();
    compiled.run(&x).unwrap();
}

#[test]
fn in_place_methods_keep_shape_and_dtype() {
    let w = Var::new(Tensor::from([[1.0f32, -2.0], [3.0, 4.0]])).unwrap();
    w.t_().unwrap();
    assert_eq!(floats(w.get()), [1.0, 3.0, -2.0, 4.0]);
    w.clamp_(0, 3.5).unwrap();
    w.neg_().unwrap();
    assert_eq!(floats(w.get()), [-1.0, -3.0, 0.0, -3.5]);
    w.scatter_(1, Tensor::from([[1i64], [0]]), 9.0).unwrap();
    w.masked_fill_(w.get().lt(-2), 7).unwrap();
    assert_eq!(floats(w.get()), [-1.0, 9.0, 9.0, 7.0]);
    w.lt_(0).unwrap();
    assert_eq!(floats(w.get()), [1.0, 0.0, 0.0, 0.0]);
    w.uniform_(2.0, 3.0).unwrap();
    assert!(floats(w.get()).iter().all(|x| (2.0..3.0).contains(x)));
    w.random_(5, 6usize).unwrap();
    assert_eq!(floats(w.get()), [5.0; 4]);
    let row = Var::new(Tensor::from([[1i64, 2]])).unwrap();
    let text = row.assign(row.t()).unwrap_err().to_string();
    assert!(
        text.contains("can't hold i64[2, 1] on cpu; a Var keeps its shape"),
        "{text}"
    );
    assert_eq!(
        (row.shape().unwrap(), row.dims()),
        (row.get().shape().unwrap(), row.get().dims())
    );
    assert!(row.exp_().is_err() && row.normal_(0.0, 1.0).is_err());
    assert_eq!(
        row.get().to_vec::<i64>().unwrap(),
        [1, 2],
        "it keeps what it held"
    );
}

#[test]
fn an_item_is_converted_where_nothing_is_lost_in_kind() {
    assert_eq!(Tensor::scalar(0.5f32).item::<f64>().unwrap(), 0.5);
    assert_eq!(Tensor::scalar(0.1f64).item::<f32>().unwrap(), 0.1f32);
    assert_eq!(Tensor::scalar(true).item::<i64>().unwrap(), 1);
    assert_eq!(
        Tensor::scalar(u64::MAX).item::<f64>().unwrap(),
        u64::MAX as f64
    );
    assert_eq!(
        Tensor::scalar(i64::MAX - 1).item::<u64>().unwrap(),
        i64::MAX as u64 - 1
    );
    assert_eq!(Tensor::scalar(-7i64).item::<i8>().unwrap(), -7);
    for wrong in [
        Tensor::scalar(1.0f32).item::<i64>().map(|_| ()),
        Tensor::scalar(1i64).item::<bool>().map(|_| ()),
        Tensor::scalar(-1i32).item::<u64>().map(|_| ()),
        Tensor::scalar(u64::MAX).item::<i64>().map(|_| ()),
        Tensor::from([1.0f32, 2.0]).item::<f64>().map(|_| ()),
    ] {
        assert!(wrong.unwrap_err().to_string().contains("calls.rs"));
    }
}

#[test]
fn sequences_of_different_lengths_lie_side_by_side() {
    let rows = [
        Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]),
        Tensor::from([[5.0f32, 6.0]]),
        Tensor::zeros([0, 2], DType::F32),
    ];
    let padded = pad_sequence(&rows);
    assert_eq!(padded.shape().unwrap(), [2, 3, 2]);
    let wanted = [1.0, 2.0, 5.0, 6.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0];
    assert_eq!(padded.to_vec::<f32>().unwrap(), wanted);
    let options = PadSequence::new().batch_first(true).padding_value(-1.0);
    let ids = [Tensor::from([1i64, 2, 3]), Tensor::from([4i64])];
    let ids = pad_sequence_with(&ids, options);
    assert_eq!(ids.to_vec::<i64>().unwrap(), [1, 2, 3, 4, -1, -1]);
    let none: [Tensor; 0] = [];
    let e = pad_sequence(none);
    assert!(e.error().unwrap().message().contains("no sequences"));
    let e = pad_sequence([&rows[0], &Tensor::from([1.0f32])]);
    assert!(
        e.error()
            .unwrap()
            .message()
            .contains("only in their length"),
        "{e}"
    );
}
