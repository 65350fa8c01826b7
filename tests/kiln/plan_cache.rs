//! The plan cache: programs that compile anew and programs that do not. The counters are the process's, so each test
//! counts in a process of its own.

use crate::is_alone;
use kiln::{
    AvgPool, CacheStats, Conv, DType, Pool, Tensor, TopK, Var, cache_stats, explain,
    set_warning_hook,
};
use std::sync::{Arc, Mutex};

/// True if this process runs the test alone; otherwise it has been run in a child process.
fn alone(name: &str) -> bool {
    is_alone(&format!("plan_cache::{name}"), &[])
}

/// The number of plans that `f` compiles.
fn compiled(f: impl FnOnce()) -> u64 {
    let before = cache_stats().compiled;
    f();
    cache_stats().compiled - before
}

/// Returns a tensor whose elements are `i % 97`.
fn test_tensor(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i % 97) as f32).collect();
    Tensor::from_slice(&values, shape)
}

/// Asserts that the engine's values are close to the reference's.
#[track_caller]
fn assert_close(tensors: &[&Tensor]) {
    let wanted = kiln::evaluate_reference(tensors).unwrap();
    for (t, wanted) in tensors.iter().zip(wanted) {
        assert_eq!(t.shape().unwrap(), wanted.shape().unwrap());
        let values = t.to_vec::<f32>().unwrap();
        let wanted = wanted.to_vec::<f32>().unwrap();
        for (i, (v, w)) in values.iter().zip(&wanted).enumerate() {
            let near =
                (v - w).abs() <= 1e-4 * w.abs().max(1.0) || v == w || v.is_nan() && w.is_nan();
            assert!(near, "element {i} is {v}, not {w}");
        }
    }
}

fn program(n: usize, scale: f64) -> Vec<f32> {
    let x = Tensor::full([n, 3], 2.0, DType::F32) + Tensor::from_slice(&vec![1f32; n * 3], [n, 3]);
    let y = (x * scale).relu().sum([1]);
    y.to_vec().unwrap()
}

#[test]
fn variants() {
    if !alone("variants") {
        return;
    }
    assert_eq!(compiled(|| drop(program(4, 2.0))), 1, "first time");
    assert_eq!(compiled(|| drop(program(4, 2.0))), 0, "the same again");
    let three = compiled(|| assert_eq!(program(4, 3.0), [27.0; 4]));
    assert_eq!(three, 1, "a number differs");
    let five = compiled(|| assert_eq!(program(4, 5.0), [45.0; 4]));
    assert_eq!(five, 0, "it is an input now");
    for n in [6, 9] {
        let plans = compiled(|| assert_eq!(program(n, 5.0), vec![45.0; n]));
        assert_eq!(plans, 1, "the first three sizes have plans of their own");
        let plans = compiled(|| assert_eq!(program(n, 6.0), vec![54.0; n]));
        assert_eq!(plans, 0, "their numbers are inputs already");
    }
    let plans = compiled(|| assert_eq!(program(10, 7.0), [63.0; 10]));
    assert_eq!(plans, 1, "the fourth size is a symbol");
    assert_eq!(compiled(|| assert_eq!(program(100, 1.0), [9.0; 100])), 0);
    let plans = compiled(|| assert_eq!(program(1, 1.0), [9.0; 1]));
    assert_eq!(plans, 1, "a size of 1 is baked");
    let plans = compiled(|| assert_eq!(program(0, 1.0), [0f32; 0]));
    assert_eq!(plans, 1, "a size of 0 is baked");
    for n in [1, 5, 0, 4, 1, 77] {
        assert_eq!(compiled(|| assert_eq!(program(n, 2.0), vec![18.0; n])), 0);
    }
    let stats = cache_stats();
    let causes = (stats.new, stats.numbers, stats.sizes, stats.symbolic);
    assert_eq!(causes, (1, 1, 4, 1), "{stats:?}");
}

/// Runs `n` steps twice. Asserts that the first pass compiles at most `max` plans, and the second none.
#[track_caller]
fn steps(n: usize, max: u64, step: impl Fn(usize)) {
    let first = compiled(|| (0..n).for_each(&step));
    assert!(first <= max, "{first} plans for {n} steps");
    let again = compiled(|| (0..n).for_each(&step));
    assert_eq!(again, 0, "plans in the second epoch");
}

#[test]
fn minibatches_by_index() {
    if !alone("minibatches_by_index") {
        return;
    }
    let x = test_tensor(&[1202, 5]);
    let y = test_tensor(&[1202]);
    let w = Var::parameter(test_tensor(&[5])).unwrap();
    // The last one is smaller.
    steps(301, 3, |i| {
        let part = (i * 4)..(i * 4 + 4).min(1202);
        let error = (x.i(part.clone()) * w.get()).sum([1]) - y.i(part);
        let loss = error.square().mean(());
        assert_close(&[&loss]);
    });
}

#[test]
fn numbers_in_indices_are_inputs() {
    if !alone("numbers_in_indices_are_inputs") {
        return;
    }
    let x = test_tensor(&[60, 7]);
    steps(50, 3, |i| {
        assert_close(&[&(x.narrow(0, i as i64, 10) + 1.0)])
    });
    steps(60, 3, |i| assert_close(&[&x.select(0, i as i64).exp2()]));
    steps(60, 3, |i| assert_close(&[&(x.i(i) + x.i(59 - i))]));
    steps(59, 3, |i| {
        assert_close(&[&(x.roll([i as i64 + 1], [0]) * 2.0)])
    });
    steps(60, 3, |i| assert_close(&[&x.set(i, x.i(0).neg())]));
    steps(50, 3, |i| assert_close(&[&x.set(i..i + 10, 3.0).cumsum(0)]));
    steps(60, 3, |i| {
        assert_close(&[&x.select_scatter(x.i(1), 0, i as i64)])
    });
    // Work that depends on no input is prepared once per offset.
    let table = || Tensor::arange(0, 64, 1).to_dtype(DType::F32).sin();
    steps(60, 4, |i| {
        let part = table().cumsum(0).i(i..i + 4).softmax(0).cumsum(0);
        assert_close(&[&(part.unsqueeze(1) * x.i(..4).cumsum(0))]);
    });
    // Five plans: of the first three sizes, of a symbolic size, and of size 1.
    steps(60, 5, |i| {
        assert_close(&[&x.flatten((0, 1)).topk(TopK::new(i as i64 + 1).dim(0)).0])
    });
    steps(58, 5, |i| assert_close(&[&x.i(i..).sum([0])]));
    steps(58, 5, |i| assert_close(&[&x.i(..i + 1).mean([0])]));
}

#[test]
fn gradients_through_indices() {
    if !alone("gradients_through_indices") {
        return;
    }
    let x = test_tensor(&[40, 3]);
    steps(36, 3, |i| {
        let w = Var::parameter(&x).unwrap();
        let part = w.get().i(i..i + 4);
        let loss = (part.square() * 0.5).sum(()) + w.get().i(39 - i).sum(());
        loss.backward().unwrap();
        assert_close(&[&w.grad().unwrap()]);
    });
}

#[test]
fn any_dim_becomes_a_symbol() {
    if !alone("any_dim_becomes_a_symbol") {
        return;
    }
    let weight = test_tensor(&[6, 6]) * 0.01;
    let step = |batch: usize, length: usize| {
        let x = test_tensor(&[batch, length, 6]) * 0.01;
        let q = x
            .reshape([-1, 6])
            .matmul(&weight)
            .reshape([batch, length, 6]);
        let scores = q.matmul(x.transpose(1, 2)).softmax(-1);
        let y = (scores.matmul(&q) + Tensor::zeros([length, 6], DType::F32)).mean([1]);
        assert_close(&[&y]);
    };
    let lengths: Vec<usize> = (0..40).map(|i| 2 + i * 17 % 61).collect();
    let plans = compiled(|| lengths.iter().for_each(|l| step(4, *l)));
    assert!(plans <= 4, "{plans} plans for one batch size");
    let plans = compiled(|| lengths.iter().for_each(|l| step(2 + l % 5, *l)));
    assert!(plans <= 3, "{plans} more plans for several batch sizes");
    // A batch of 1 does not evict the existing plans.
    let plans = compiled(|| lengths.iter().for_each(|l| step(1, *l)));
    assert!(plans <= 3, "{plans} plans for a batch of 1");
    let plans = compiled(|| (1..60).for_each(|l| step(1 + l % 3, lengths[l % 40])));
    assert_eq!(plans, 0);
}

#[test]
fn growing_sequences_settle() {
    if !alone("growing_sequences_settle") {
        return;
    }
    let positions = test_tensor(&[64, 4]);
    let plans = compiled(|| {
        let mut keys = Tensor::zeros([2, 1, 4], DType::F32);
        for t in 1..50 {
            let token = test_tensor(&[2, 1, 4]) * 0.01 + positions.i(t) * 0.01;
            keys = kiln::cat(&[&keys, &token], 1);
            let scores = token.matmul(keys.transpose(1, 2)).softmax(-1);
            assert_close(&[&scores.matmul(&keys), &keys]);
        }
    });
    assert!(plans <= 6, "{plans} plans for 49 steps");
}

#[test]
fn sizes_of_no_input_become_symbols() {
    if !alone("sizes_of_no_input_become_symbols") {
        return;
    }
    let step = |n: usize| {
        let x = Tensor::zeros([n, 3], DType::F32) + Tensor::arange(0, n as i64, 1).unsqueeze(1);
        assert_close(&[&x.sum([0]), &Tensor::ones([n], DType::F32).cumsum(0)]);
    };
    let plans = compiled(|| (2..40).for_each(step));
    assert!(plans <= 8, "{plans} plans for two programs");
}

#[test]
fn the_first_sizes_keep_their_plans() {
    if !alone("the_first_sizes_keep_their_plans") {
        return;
    }
    let sum = |n: usize| {
        let x = (0..n * 300)
            .map(|i| (i as f32 * 0.37).sin())
            .collect::<Vec<_>>();
        let x = Tensor::from_slice(&x, [n, 300]);
        (x.exp().sum(()) / 3.0).to_vec::<f32>().unwrap()[0].to_bits()
    };
    let before: Vec<u32> = [8, 12, 20].map(sum).to_vec();
    let plans = compiled(|| (2..40).for_each(|n| assert_ne!(sum(n), 0)));
    assert_eq!(plans, 1);
    assert_eq!([8, 12, 20].map(sum).to_vec(), before);
}

#[test]
fn deterministic_plans_know_their_sizes() {
    if !alone("deterministic_plans_know_their_sizes") {
        return;
    }
    kiln::tuning::set_mode(kiln::tuning::Mode::Deterministic);
    let x = test_tensor(&[20, 3]);
    let plans = compiled(|| (2..8).for_each(|n| assert_close(&[&(x.i(n..2 * n) * 2.0)])));
    assert_eq!(plans, 6);
    let plans = compiled(|| (0..16).for_each(|i| assert_close(&[&(x.i(i..i + 4) * 2.0)])));
    assert_eq!(plans, 1, "an offset is an input all the same");
    assert_eq!(cache_stats().symbolic, 0);
}

#[test]
fn frequent_compilation_warns() {
    if !alone("frequent_compilation_warns") {
        return;
    }
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let list = said.clone();
    set_warning_hook(Some(std::sync::Arc::new(move |text| {
        list.lock().unwrap().push(text.to_string())
    })));
    // The size of a window is part of a program's structure.
    let x = test_tensor(&[1, 1, 40, 40]);
    let mut ys = Vec::new();
    for n in 1..30 {
        ys.push(x.max_pool2d(Pool::new(n).stride(1)).sum(()));
    }
    for y in ys {
        y.to_vec::<f32>().unwrap();
    }
    let said = said.lock().unwrap();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("plan_cache.rs"), "{said:?}");
}

#[test]
fn images_of_any_size_share_a_plan() {
    if !alone("images_of_any_size_share_a_plan") {
        return;
    }
    let weight = test_tensor(&[4, 3, 3, 3]) / 97.0;
    let classify = |h: usize, w: usize| {
        let x = test_tensor(&[2, 3, h, w]) / 97.0;
        let y = x
            .conv2d_with(&weight, Conv::new().stride(2).padding(1))
            .relu();
        let y = y.max_pool2d(Pool::new(3).stride(2).padding(1));
        let pool = AvgPool::new(2).stride(2).padding(1).ceil_mode(true);
        assert_close(&[&y.avg_pool2d(pool.count_include_pad(false))]);
    };
    let sizes = [[16, 16], [17, 23], [31, 18], [22, 9], [40, 41], [13, 37]];
    for [h, w] in sizes {
        classify(h, w);
    }
    let more = [[19, 21], [64, 6], [5, 7], [38, 38]];
    let plans = compiled(|| more.iter().for_each(|[h, w]| classify(*h, *w)));
    assert_eq!(plans, 0, "height and width are symbols");
}

#[test]
fn reasons_name_what_differs() {
    if !alone("reasons_name_what_differs") {
        return;
    }
    let text = |n: usize, i: usize| {
        let x = test_tensor(&[n, 9]);
        let y = x.i((.., i..i + 2)) * 2.0;
        let line = line!() - 1;
        let text = explain(&y).unwrap().to_string();
        assert_close(&[&y]);
        (text, line)
    };
    text(4, 1);
    let (found, line) = text(4, 3);
    let offset = "an offset of `slice` at tests/kiln/plan_cache.rs:";
    let wanted = format!("{offset}{line}:");
    assert!(
        found.contains(&wanted) && found.contains("is 3 and was 1"),
        "{found}"
    );
    text(5, 3);
    text(6, 3);
    let (found, _) = text(7, 3);
    assert!(found.contains("dim 0 of `input`"), "{found}");
    assert!(found.contains("is 7 and was 6"), "{found}");
    assert!(found.contains("sizes that differ are symbols"), "{found}");
    assert!(
        found.contains("the first three sizes have plans of their own"),
        "{found}"
    );
    assert!(
        found.contains("is an input of the plan from now on"),
        "{found}"
    );
    let CacheStats {
        compiled,
        new,
        numbers,
        sizes,
        symbolic,
        ..
    } = cache_stats();
    assert_eq!(compiled, new + numbers + sizes + symbolic);
}
