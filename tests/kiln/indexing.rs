//! `x[..]` and `x[..] = value` against a model of NumPy's rules, and PyTorch's results.

use crate::vector;
use kiln::{DType, Ellipsis, ErrorKind, Index, NewAxis, Tensor, Var, step};
use kiln_ir::fuzz::Rng;

fn counted(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<i64> = (0..n as i64).collect();
    Tensor::from_slice(&values, shape)
}

/// The values of the reference evaluation; the engine must agree.
#[track_caller]
fn reference(t: &Tensor) -> Vec<i64> {
    let values: Vec<i64> = kiln::evaluate_reference(t).unwrap().to_vec().unwrap();
    assert_eq!(t.to_vec::<i64>().unwrap(), values);
    values
}

#[track_caller]
fn assert_taken(t: Tensor, shape: &[usize], values: &[i64]) {
    assert_eq!(t.shape().unwrap(), shape);
    assert_eq!(t.to_vec::<i64>().unwrap(), values);
}

#[test]
fn views() {
    let x = counted(&[3, 4]);
    assert_taken(x.i(1), &[4], &[4, 5, 6, 7]);
    assert_taken(x.i(-1), &[4], &[8, 9, 10, 11]);
    assert_taken(x.i((1, -2)), &[], &[6]);
    assert_taken(x.i((.., 1)), &[3], &[1, 5, 9]);
    assert_taken(x.i((.., -3..-1)), &[3, 2], &[1, 2, 5, 6, 9, 10]);
    assert_taken(x.i((1.., ..2)), &[2, 2], &[4, 5, 8, 9]);
    assert_taken(x.i((0..=1, ..=0)), &[2, 1], &[0, 4]);
    assert_taken(x.i((..=-2, ..=-1)), &[2, 4], &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_taken(x.i((step(.., 2), step(1.., 2))), &[2, 2], &[1, 3, 9, 11]);
    assert_taken(
        x.i((step(.., -1), step(1..3, -1))),
        &[3, 2],
        &[10, 9, 6, 5, 2, 1],
    );
    assert_taken(x.i((Ellipsis, 0)), &[3], &[0, 4, 8]);
    assert_taken(x.i((0, Ellipsis)), &[4], &[0, 1, 2, 3]);
    assert_taken(x.i((1, 1, Ellipsis)), &[], &[5]);
    assert_taken(x.i((0, NewAxis, 1..3, NewAxis)), &[1, 2, 1], &[1, 2]);
    assert_eq!(x.i(()).shape().unwrap(), [3, 4]);
    // Bounds beyond the ends stop there; an empty range is empty.
    assert_taken(x.i((2..100, 7..9)), &[1, 0], &[]);
    assert_taken(x.i((-100..1, 3usize)), &[1], &[3]);
}

#[test]
fn lists_masks_and_index_tensors() {
    let x = counted(&[3, 4]);
    assert_taken(x.i([2, 0]), &[2, 4], &[8, 9, 10, 11, 0, 1, 2, 3]);
    assert_taken(x.i(([0, -1], [1, 2])), &[2], &[1, 10]);
    assert_taken(x.i((.., vec![3i64, 3])), &[3, 2], &[3, 3, 7, 7, 11, 11]);
    let column = Tensor::from_slice(&[0i64, 2], [2, 1]);
    assert_taken(x.i((&column, [1, 3])), &[2, 2], &[1, 3, 9, 11]);
    let narrow = Tensor::from_slice(&[2i16, 1], [2]);
    assert_taken(x.i((narrow, 0)), &[2], &[8, 4]);
    // A rank-0 index is a number whose value is not known yet.
    assert_taken(x.i(Tensor::scalar(-1i64)), &[4], &[8, 9, 10, 11]);
    assert_taken(x.i((1.., Tensor::scalar(2i32))), &[2], &[6, 10]);

    assert_taken(x.i(x.gt(8)), &[3], &[9, 10, 11]);
    assert_taken(x.i(([true, false, true], 1..3)), &[2, 2], &[1, 2, 9, 10]);
    assert_taken(
        x.i((.., vector(&[0.0, 1.0, 0.0, 1.0]).gt(0.5))),
        &[3, 2],
        &[1, 3, 5, 7, 9, 11],
    );
    assert_taken(x.i(x.lt(0)), &[0], &[]);
    assert_taken(x.i((true, 0)), &[1, 4], &[0, 1, 2, 3]);
    assert_taken(x.i((false, 0)), &[0, 4], &[]);
    assert_taken(x.i((Tensor::scalar(true), 0, 1)), &[1], &[1]);
    // A mask broadcasts with lists by the number of elements that it selects.
    assert_taken(x.i(([true, false, true], [1, 2])), &[2], &[1, 10]);
    let empty: [i64; 0] = [];
    assert_taken(x.i(empty), &[0, 4], &[]);
}

#[test]
fn advanced_dims_stand_where_pytorch_puts_them() {
    let x = counted(&[2, 3, 4, 5]);
    let shape = |t: Tensor| t.shape().unwrap();
    assert_eq!(shape(x.i((.., [0, 1], [1, 2]))), [2, 2, 5]);
    assert_eq!(shape(x.i(([0, 1], .., [1, 2]))), [2, 3, 5]);
    assert_eq!(shape(x.i((.., [0, 1, 2, 0], .., [1]))), [4, 2, 4]);
    // A number is a view and does not separate advanced indices.
    assert_eq!(shape(x.i((.., [0, 1], 3, [1, 2]))), [2, 2]);
    assert_eq!(shape(x.i(([0, 1, 1], NewAxis, [1, 2, 0]))), [3, 1, 4, 5]);
    let pair = Tensor::from_slice(&[0i64, 1, 2, 0, 1, 2], [3, 2]);
    assert_eq!(shape(x.i((Ellipsis, &pair, ..))), [2, 3, 3, 2, 5]);
    let mask = counted(&[3, 4]).gt(6);
    assert_eq!(shape(x.i((0, mask, 1..3))), [5, 2]);
}

#[test]
fn mistakes_name_the_line() {
    let x = counted(&[3, 4]);
    let message = |t: Tensor| {
        let e = t.realize().unwrap_err();
        assert!(e.to_string().contains("indexing.rs"), "{e}");
        e.message().to_string()
    };
    assert!(message(x.i((0, 0, 0))).contains("too many indices"));
    assert!(message(x.i(3)).contains("index 3 is out of range for dim 0"));
    assert!(message(x.i((.., -5))).contains("index -5 is out of range for dim 1"));
    assert!(message(x.i((.., [0, 4]))).contains("index 4 is out of range for dim 1"));
    assert!(message(x.i(([0, 1], [0, 1, 2]))).contains("do not broadcast"));
    assert!(message(x.i((Ellipsis, Ellipsis))).contains("only one ellipsis"));
    assert!(message(x.i([true, false])).contains("does not fit the dims [3]"));
    assert!(message(x.i((.., counted(&[3]).gt(0)))).contains("does not fit the dims [4]"));
    assert!(message(x.i(vector(&[0.0]))).contains("must hold integers or bools, not f32"));
    assert!(message(x.i(step(.., 0))).contains("step can't be 0"));
    assert!(message(x.set((0, 0, 0), 1)).contains("too many indices"));
    assert!(message(x.set(7, 1)).contains("index 7 is out of range"));
    assert!(message(x.set((.., 0), counted(&[2]))).contains("can't be broadcast to the shape [3]"));
    assert!(message(x.set([0, 1], counted(&[3]))).contains("can't be broadcast"));
    let data = x.i(Tensor::from_slice(&[0i64, 3], [2]));
    assert_eq!(data.realize().unwrap_err().kind(), ErrorKind::Data);
    // An error of an operand stays the error.
    let bad = x.matmul(counted(&[5]));
    assert_eq!(x.i(&bad).error().unwrap().op(), "matmul");
    assert_eq!(x.set(0, &bad).error().unwrap().op(), "matmul");
}

#[test]
fn a_mask_is_data_and_can_not_be_recorded() {
    let spec = kiln::Spec::new(DType::F32, [3]);
    let compiled = kiln::compile(&spec, |x| x.i(x.gt(0.0)));
    assert_eq!(compiled.unwrap_err().kind(), ErrorKind::ReadWhileCompiling);
    // A mask that only selects the elements to write is recorded.
    let relu = kiln::compile(spec, |x| x.set(x.lt(0.0), 0.0)).unwrap();
    let y = relu.run(vector(&[-1.0, 2.0, -3.0])).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 2.0, 0.0]);
}

#[test]
fn parts_are_assigned() {
    let x = counted(&[3, 4]);
    let row = counted(&[4]);
    assert_taken(
        x.set(1, 0),
        &[3, 4],
        &[0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 10, 11],
    );
    assert_taken(
        x.set((.., -1), -1),
        &[3, 4],
        &[0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1],
    );
    assert_taken(
        x.set((step(.., 2), step(.., -1)), &row),
        &[3, 4],
        &[3, 2, 1, 0, 4, 5, 6, 7, 3, 2, 1, 0],
    );
    assert_taken(
        x.set((.., step(0..4, -2)), -1),
        &[3, 4],
        &[0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10, -1],
    );
    assert_taken(
        x.set(.., &row),
        &[3, 4],
        &[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
    );
    assert_taken(x.set(3.., 9), &[3, 4], &reference(&x));
    // Leading dims of size 1 of the value are dropped, as in PyTorch.
    assert_taken(x.set(0, row.reshape([1, 1, 4])).i(0), &[4], &[0, 1, 2, 3]);
    // The value takes the tensor's dtype; -0, NaN and infinities are kept.
    let odd = vector(&[-0.0, f32::NAN, f32::INFINITY]);
    let y = vector(&[1.0, 2.0, 3.0, 4.0])
        .set(1.., &odd)
        .to_vec::<f32>()
        .unwrap();
    assert_eq!(y[1].to_bits(), (-0.0f32).to_bits());
    assert!(y[0] == 1.0 && y[2].is_nan() && y[3] == f32::INFINITY);
    let small = Tensor::from_slice(&[1u8, 2], [2]).set(0, vector(&[7.9]).squeeze(0));
    assert_eq!(small.to_vec::<u8>().unwrap(), [7, 2]);
    for dtype in DType::ALL {
        let y = Tensor::ones([3], dtype).set(1, 0).to_dtype(DType::I64);
        assert_eq!(y.to_vec::<i64>().unwrap(), [1, 0, 1], "{dtype}");
    }
    let masked = x.set(x.gt(5).bitwise_and(x.lt(9)), -1);
    assert_taken(masked, &[3, 4], &[0, 1, 2, 3, 4, 5, -1, -1, -1, 9, 10, 11]);
    // A mask over the first dim, and a value for the remaining dims.
    let rows = x.i((.., 0)).gt(0);
    assert_taken(
        x.set(&rows, &row),
        &[3, 4],
        &[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3],
    );
}

#[test]
fn elements_are_assigned() {
    let (t, u) = (counted(&[6]), counted(&[6]) + 10);
    assert_eq!(
        reference(&t.set([1, 3, 4], u.i([1, 3, 4]))),
        [0, 11, 2, 13, 14, 5]
    );
    // The later of two values for one element wins.
    assert_eq!(
        reference(&t.set([0, 0], Tensor::from_slice(&[7i64, 8], [2]))),
        [8, 1, 2, 3, 4, 5]
    );
    assert_eq!(
        reference(&t.set(t.gt(3), &(&t.i(t.gt(3)) * 10))),
        [0, 1, 2, 3, 40, 50]
    );
    assert_eq!(
        reference(&t.set(Tensor::scalar(-1i64), 0)),
        [0, 1, 2, 3, 4, 0]
    );
}

#[test]
fn cells_are_assigned_in_part() {
    let v = Var::new(counted(&[2, 3])).unwrap();
    let before = v.get();
    v.set((.., 0), 9).unwrap();
    v.set((1, 1..), Tensor::from_slice(&[7i64, 8], [2]))
        .unwrap();
    assert_eq!(v.get().to_vec::<i64>().unwrap(), [9, 1, 2, 9, 7, 8]);
    assert_eq!(before.to_vec::<i64>().unwrap(), [0, 1, 2, 3, 4, 5]);
    let e = v.set(5, 0).unwrap_err();
    assert!(e.to_string().contains("v.set(5, 0)"), "{e}");
    assert_eq!(v.get().to_vec::<i64>().unwrap(), [9, 1, 2, 9, 7, 8]);
}

/// An item of an index, as the model sees it: its positions.
enum Model {
    At(i64),
    Slice(Vec<i64>),
    New,
    /// Positions of this shape, for each of the dims that it indexes.
    Advanced(Vec<usize>, Vec<Vec<i64>>),
}

fn random_item(rng: &mut Rng, sizes: &[usize], lists: usize) -> Option<(Index, Model)> {
    let n = sizes[0] as i64;
    Some(match rng.below(7) {
        0 if n > 0 => {
            let i = rng.below(sizes[0]) as i64;
            let shown = if rng.below(2) == 0 { i } else { i - n };
            (Index::At(shown), Model::At(i))
        }
        1 => (Index::NewAxis, Model::New),
        2 if n > 0 => {
            let shape = [vec![lists], vec![2, lists], vec![1], vec![]][rng.below(4)].clone();
            let list: Vec<i64> = (0..shape.iter().product())
                .map(|_| rng.below(sizes[0]) as i64)
                .collect();
            let model = match shape[..] {
                [] => Model::At(list[0]),
                _ => Model::Advanced(shape.clone(), vec![list.clone()]),
            };
            (Index::Tensor(Tensor::from_slice(&list, &shape)), model)
        }
        3 => {
            let k = 1 + rng.below(sizes.len().min(2));
            let shape = &sizes[..k];
            let total: usize = shape.iter().product();
            // The mask selects as many elements as the lists have, or one: otherwise nothing broadcasts.
            let count = [lists, 1][rng.below(2)];
            if total < count {
                return None;
            }
            let mut bits = vec![false; total];
            while bits.iter().filter(|b| **b).count() < count {
                bits[rng.below(total)] = true;
            }
            let mut found = vec![Vec::new(); k];
            for (i, _) in bits.iter().enumerate().filter(|b| *b.1) {
                let mut rest = i;
                for (f, n) in found.iter_mut().zip(shape).rev() {
                    f.push((rest % n) as i64);
                    rest /= n;
                }
            }
            let mask = Tensor::from_slice(&bits, shape);
            (Index::Tensor(mask), Model::Advanced(vec![count], found))
        }
        _ => {
            let by: i64 = [1, 1, 2, 3, -1, -2][rng.below(6)];
            let (low, high) = (
                rng.below(sizes[0] + 1) as i64,
                rng.below(sizes[0] + 1) as i64,
            );
            let mut taken: Vec<i64> = (low..high).collect();
            if by < 0 {
                taken.reverse();
            }
            let taken = taken
                .into_iter()
                .step_by(by.unsigned_abs() as usize)
                .collect();
            let from_end = low < n && rng.chance(0.5);
            let start = (low > 0).then_some(if from_end { low - n } else { low });
            let end = (high < n).then_some(high);
            let index = Index::Slice {
                start,
                end,
                step: by,
            };
            (index, Model::Slice(taken))
        }
    })
}

/// The shape of what the items take and, for each of its elements, the position in x.
fn model(shape: &[usize], items: &[Model]) -> (Vec<usize>, Vec<i64>) {
    // One entry for each result dim: a basic dim of x with its positions, or the advanced block.
    enum Dim<'a> {
        Basic(Option<usize>, &'a [i64]),
        Block,
    }
    let mut block: Vec<usize> = Vec::new();
    for m in items {
        if let Model::Advanced(s, _) = m {
            let rank = block.len().max(s.len());
            let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
            block = (0..rank).map(|i| at(&block, i).max(at(s, i))).collect();
        }
    }
    let mut dims: Vec<Dim> = Vec::new();
    let (mut axis, mut fixed, mut chosen) = (0, Vec::new(), Vec::new());
    let (mut blocks, mut runs, mut last_block) = (0, 0, false);
    for m in items {
        match m {
            Model::At(i) => {
                fixed.push((axis, *i));
                axis += 1;
            }
            Model::New => {
                dims.push(Dim::Basic(None, &[0]));
                last_block = false;
            }
            Model::Slice(p) => {
                dims.push(Dim::Basic(Some(axis), p));
                axis += 1;
                last_block = false;
            }
            Model::Advanced(s, lists) => {
                for list in lists {
                    chosen.push((axis, s, list));
                    axis += 1;
                }
                blocks += 1;
                runs += usize::from(!last_block);
                if blocks == 1 {
                    dims.push(Dim::Block);
                }
                last_block = true;
            }
        }
    }
    let whole: Vec<Vec<i64>> = shape[axis..]
        .iter()
        .map(|n| (0..*n as i64).collect())
        .collect();
    for (i, p) in whole.iter().enumerate() {
        dims.push(Dim::Basic(Some(axis + i), p));
    }
    if runs > 1 {
        dims.retain(|d| !matches!(d, Dim::Block));
        dims.insert(0, Dim::Block);
    }
    let mut out = Vec::new();
    for d in &dims {
        match d {
            Dim::Basic(_, p) => out.push(p.len()),
            Dim::Block => out.extend(&block),
        }
    }
    let total: usize = out.iter().product();
    let positions = (0..total).map(|element| {
        let mut at = vec![0i64; shape.len()];
        fixed.iter().for_each(|(a, i)| at[*a] = *i);
        let mut coordinates = vec![0; out.len()];
        let mut rest = element;
        for (c, n) in coordinates.iter_mut().zip(&out).rev() {
            (*c, rest) = (rest % n, rest / n);
        }
        let mut next = 0;
        for d in &dims {
            match d {
                Dim::Basic(a, p) => {
                    if let Some(a) = a {
                        at[*a] = p[coordinates[next]];
                    }
                    next += 1;
                }
                Dim::Block => {
                    let here = &coordinates[next..next + block.len()];
                    for (a, s, list) in &chosen {
                        let own = &here[block.len() - s.len()..];
                        let i = own
                            .iter()
                            .zip(*s)
                            .fold(0, |i, (c, n)| i * n + if *n == 1 { 0 } else { *c });
                        at[*a] = list[i];
                    }
                    next += block.len();
                }
            }
        }
        at.iter().zip(shape).fold(0, |p, (i, n)| p * *n as i64 + i)
    });
    (out.clone(), positions.collect())
}

#[test]
fn random_items_agree_with_the_model() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let rank = 1 + rng.below(4);
        let shape: Vec<usize> = (0..rank).map(|_| [1, 2, 3, 5][rng.below(4)]).collect();
        let (mut items, mut models, mut axis) = (Vec::new(), Vec::new(), 0);
        let lists = 1 + rng.below(3);
        while axis < rank && rng.below(6) > 0 {
            let Some((item, m)) = random_item(&mut rng, &shape[axis..], lists) else {
                continue;
            };
            axis += match &m {
                Model::New => 0,
                Model::Advanced(_, lists) => lists.len(),
                _ => 1,
            };
            items.push(item);
            models.push(m);
        }
        let x = counted(&shape);
        let (out, positions) = model(&shape, &models);
        let taken = x.i(&items[..]);
        assert_eq!(
            taken.shape().unwrap(),
            out,
            "seed {seed}: {shape:?} {items:?}"
        );
        assert_eq!(taken.to_vec::<i64>().unwrap(), positions, "seed {seed}");

        let values: Vec<i64> = (0..positions.len() as i64).map(|i| -1 - i).collect();
        let value = Tensor::from_slice(&values, &out);
        let mut expected: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
        for (p, v) in positions.iter().zip(&values) {
            expected[*p as usize] = *v;
        }
        let y = x.set(&items[..], &value);
        assert_eq!(reference(&y), expected, "seed {seed}: {shape:?} {items:?}");
    }
}
