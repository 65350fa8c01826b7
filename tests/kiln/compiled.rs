//! `compile`: symbols, prepare, concurrency, reading while recording, plans as bytes.

use crate::{assert_close, matrix, vector};
use kiln::{
    Conv, DType, Dim, ErrorKind, RunningStats, Spec, Tensor, Var, compile, evaluate_reference,
};

fn batch(n: usize) -> Tensor {
    let values: Vec<f32> = (0..n * 2 * 5 * 5)
        .map(|i| (i % 23) as f32 / 7.0 - 1.0)
        .collect();
    Tensor::from_slice(&values, [n, 2, 5, 5])
}

struct Block {
    weight: Var,
    mean: Var,
    variance: Var,
}

impl Block {
    fn new(scale: f32) -> Block {
        let weight: Vec<f32> = (0..3 * 2 * 3 * 3)
            .map(|i| scale * ((i % 7) as f32 - 3.0))
            .collect();
        Block {
            weight: Var::new(Tensor::from_slice(&weight, [3, 2, 3, 3])).unwrap(),
            mean: Var::new(vector(&[0.1, 0.2, 0.3])).unwrap(),
            variance: Var::new(vector(&[1.0, 2.0, 0.5])).unwrap(),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let y = x.conv2d_with(
            self.weight.get(),
            Conv::new().stride([1, 1]).padding([1, 1]).dilation([1, 1]),
        );
        y.batch_norm_with(
            RunningStats::new()
                .running_mean(&self.mean)
                .running_var(&self.variance),
        )
        .relu()
    }

    fn reference(&self, x: &Tensor) -> Vec<f32> {
        evaluate_reference(self.forward(x))
            .unwrap()
            .to_vec()
            .unwrap()
    }
}

fn image() -> Spec {
    Spec::new(DType::F32, ("n", 2, 5, 5))
}

#[test]
fn folded_weights_are_prepared_once_and_again_when_a_var_changes() {
    let block = Block::new(0.1);
    let f = compile(image(), |x| block.forward(&x)).unwrap();
    assert_eq!(f.explain().folded(), 1, "{}", f.explain());
    assert!(f.explain().kernels_prepared() > 0);
    for n in [2, 7, 3] {
        let x = batch(n);
        assert_close(
            &f.run(&x).unwrap().to_vec::<f32>().unwrap(),
            &block.reference(&x),
        );
    }
    block.variance.assign(vector(&[4.0, 4.0, 4.0])).unwrap();
    block.weight.assign(&(block.weight.get() * 2.0)).unwrap();
    let x = batch(4);
    assert_close(
        &f.run(&x).unwrap().to_vec::<f32>().unwrap(),
        &block.reference(&x),
    );
}

#[test]
fn two_models_that_share_a_plan_do_not_mix() {
    let (a, b) = (Block::new(0.1), Block::new(-0.3));
    let x = batch(3);
    for _ in 0..2 {
        for block in [&a, &b] {
            let got = block.forward(&x).to_vec::<f32>().unwrap();
            assert_close(&got, &block.reference(&x));
        }
    }
}

#[test]
fn outputs_survive_the_next_run() {
    let f = compile(Spec::new(DType::F32, [3]), |x| x.exp()).unwrap();
    let first = f.run(vector(&[0.0, 1.0, 2.0])).unwrap();
    let values = first.to_vec::<f32>().unwrap();
    for _ in 0..5 {
        f.run(vector(&[9.0, 9.0, 9.0])).unwrap();
    }
    assert_eq!(first.to_vec::<f32>().unwrap(), values);
}

#[test]
fn runs_may_overlap() {
    let w = Var::new(matrix(16, 8)).unwrap();
    let f = compile(Spec::new(DType::F32, ("n", 16)), |x| {
        x.matmul(w.get()).softmax(1)
    })
    .unwrap();
    std::thread::scope(|s| {
        for t in 2..6 {
            let (f, w) = (&f, &w);
            s.spawn(move || {
                let x = matrix(t * 3, 16);
                let want = evaluate_reference(x.matmul(w).softmax(1)).unwrap();
                let want = want.to_vec::<f32>().unwrap();
                for _ in 0..50 {
                    assert_close(&f.run(&x).unwrap().to_vec::<f32>().unwrap(), &want);
                }
            });
        }
    });
}

#[test]
fn reading_while_recording_is_an_error() {
    let outside = vector(&[1.0, 2.0]);
    for read_outside in [false, true] {
        let e = compile(Spec::new(DType::F32, [2]), |x| {
            let t = if read_outside { &outside } else { &x };
            let value = t.to_vec::<f32>()?;
            Ok::<_, kiln::Error>(x.mul(value[0]))
        })
        .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ReadWhileCompiling, "{e}");
        assert!(e.loc().file().ends_with("compiled.rs"));
    }
    // The recording ended with the error.
    assert_eq!(outside.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn arguments_must_fit() {
    let f = compile(Spec::new(DType::F32, ("n", 2)), |x| x.exp()).unwrap();
    for wrong in [
        Tensor::zeros([3, 3], DType::F32),
        Tensor::zeros([3, 2], DType::F64),
        Tensor::zeros([2], DType::F32),
    ] {
        let e = f.run(&wrong).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Value);
        assert!(e.message().contains("f32[n, 2]"), "{e}");
    }
    // The number of arguments is not always part of the type.
    let sum = compile(vec![Spec::new(DType::F32, 2); 3], |x| &x[0] + &x[1] * &x[2]).unwrap();
    let e = sum.run(vec![vector(&[1.0, 2.0]); 2]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Value);
    assert!(e.message().contains("argument 2 is not given"), "{e}");
    let e = sum.run(vec![vector(&[1.0, 2.0]); 4]).unwrap_err();
    assert!(e.message().contains("argument 3 is given, but"), "{e}");
}

#[test]
fn symbols_of_0_and_1_run() {
    let weight = Var::new(Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0], [2, 2])).unwrap();
    let seen = Var::new(Tensor::zeros([2], DType::F32)).unwrap();
    let spec = Spec::new(DType::F32, ("n", "m", 2));
    let f = compile(spec, |x| {
        let n = x.dims()[0].clone();
        let y = x.matmul(weight.get()).softmax(-1);
        seen.assign(&(seen.get() + y.sum([0, 1]))).unwrap();
        let row = Tensor::arange(0, n, 1).unsqueeze(1).unsqueeze(2);
        [y.mean([1]), y + row, x.flatten((0, 1))]
    })
    .unwrap();
    let mut total = Tensor::zeros([2], DType::F32);
    for (n, m) in [
        (3, 4),
        (1, 4),
        (3, 1),
        (1, 1),
        (5, 2),
        (1, 6),
        (0, 3),
        (0, 1),
        (1, 4),
    ] {
        let x = Tensor::from_slice(&vec![0.25f32; n * m * 2], [n, m, 2]);
        let y = x.matmul(weight.get()).softmax(-1);
        let row = Tensor::arange(0, n as i64, 1).unsqueeze(1).unsqueeze(2);
        let wanted = [y.mean([1]), &y + row, x.flatten((0, 1))];
        for (found, wanted) in f.run(&x).unwrap().iter().zip(&wanted) {
            assert_eq!(found.shape().unwrap(), wanted.shape().unwrap());
            let (found, wanted) = (found.to_vec::<f32>(), wanted.to_vec::<f32>());
            for (a, b) in found.unwrap().iter().zip(wanted.unwrap()) {
                assert!((a - b).abs() < 1e-6, "{n} {m}: {a} is not {b}");
            }
        }
        total += y.sum([0, 1]);
    }
    let (seen, total) = (
        seen.get().to_vec::<f32>().unwrap(),
        total.to_vec::<f32>().unwrap(),
    );
    assert!(
        seen.iter().zip(&total).all(|(a, b)| (a - b).abs() < 1e-4),
        "{seen:?} {total:?}"
    );

    // An operation that a size of 1 does not allow is an error of that run.
    let spec = Spec::new(DType::F32, "n");
    let second = compile(spec, |x| x.narrow(0, 1, 1)).unwrap();
    let e = second.run(Tensor::zeros([1], DType::F32)).unwrap_err();
    assert!(e.message().contains("can't be compiled for n = 1"), "{e}");
    let y = second.run(Tensor::ones([2], DType::F32)).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0]);
}

#[test]
fn new_tensors_take_symbolic_sizes() {
    let spec = Spec::new(DType::F32, ("n", 3));
    let f = compile(spec, |x| {
        let n = x.dims()[0].clone();
        let shape = vec![n.clone(), Dim::from(3)];
        let numbers = Tensor::full(&shape, 2.0, DType::F32) + Tensor::ones(&shape, DType::F32);
        let random =
            Tensor::rand(&shape, DType::F32) * Tensor::zeros(&shape[..1], DType::F32).unsqueeze(1);
        let steps = Tensor::arange(1, &n + &Dim::from(1), 1).unsqueeze(1);
        [&x * numbers + random, &x * steps]
    })
    .unwrap();
    for n in [2, 5, 1] {
        let y = f.run(Tensor::ones([n, 3], DType::F32)).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), vec![3.0; n * 3]);
        let steps: Vec<f32> = (0..n * 3).map(|i| (i / 3 + 1) as f32).collect();
        assert_eq!(y[1].to_vec::<f32>().unwrap(), steps);
    }
    let mut kept = None;
    let spec = Spec::new(DType::F32, "n");
    compile(spec, |x| {
        kept = Some(x.dims()[0].clone());
        x.exp()
    })
    .unwrap();
    let e = Tensor::zeros(vec![kept.unwrap()], DType::F32)
        .realize()
        .unwrap_err();
    assert!(e.message().contains("has no value outside it"), "{e}");
}

#[test]
fn one_symbol_has_one_value() {
    let spec = || Spec::new(DType::F32, "n");
    let f = compile([spec(), spec()], |[x, y]| &x + &y).unwrap();
    let y = f
        .run([&vector(&[1.0, 2.0, 3.0]), &vector(&[1.0; 3])])
        .unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
    assert!(f.run([&vector(&[1.0; 3]), &vector(&[1.0; 4])]).is_err());
}

#[test]
fn captured_tensors_and_random_numbers_work_in_compiled_functions() {
    let offset = matrix(1, 4) * 2.0;
    let f = compile(Spec::new(DType::F32, ("n", 4)), |x| {
        [&x + &offset, x.rand_like()]
    })
    .unwrap();
    let x = matrix(3, 4);
    let first = f.run(&x).unwrap();
    let second = f.run(&x).unwrap();
    let want = (&x + &offset).to_vec::<f32>().unwrap();
    assert_eq!(first[0].to_vec::<f32>().unwrap(), want);
    let (a, b) = (
        first[1].to_vec::<f32>().unwrap(),
        second[1].to_vec::<f32>().unwrap(),
    );
    assert_ne!(a, b, "each run draws new numbers");
    assert!(a.iter().all(|x| (0.0..1.0).contains(x)));
}

#[test]
fn a_compiled_function_travels_as_bytes() {
    let block = Block::new(0.2);
    let f = compile(image(), |x| block.forward(&x)).unwrap();
    let entry = kiln_plan::Entry::from_bytes(&f.to_bytes()).unwrap();
    assert_eq!(
        (entry.plan, &entry.signature),
        (f.plan().clone(), f.signature())
    );
}

#[test]
fn names_say_where_captured_tensors_and_states_are_from() {
    let var = |name: Option<&str>| {
        let var = Var::new(vector(&[1.0, 2.0])).unwrap();
        name.into_iter().for_each(|n| var.set_name(n));
        var
    };
    // Two modules may have parameters of the same name.
    let [a, b] = [(); 2].map(|()| var(Some("weight")));
    let (bias, unnamed) = (var(Some("bias")), var(None));
    let (held, made) = (bias.get(), vector(&[3.0, 4.0]));
    let specs = [(); 2].map(|()| Spec::new(DType::F32, 2));
    let f = compile(specs, |[x, _]| {
        let _read_by_nothing = &unnamed + &bias;
        (vec![&x * &a.get() + &b], &held * &made - &unnamed)
    });
    let f = f.unwrap();
    let signature = f.signature();
    let names = |list: &[kiln_plan::Named]| -> Vec<String> {
        list.iter().map(|n| n.name.clone()).collect()
    };
    assert_eq!(names(&signature.arguments), ["0", "1"]);
    assert_eq!(names(&signature.results), ["0.0", "1"]);
    assert_eq!(names(&signature.captured), ["bias", "captured.1"]);
    let states: Vec<&str> = signature.states.iter().map(|s| &s.name[..]).collect();
    assert_eq!(states, ["state.0", "weight", "weight_1"]);
    let ids: Vec<u64> = f.states().iter().map(Var::id).collect();
    assert_eq!(ids, [unnamed.id(), a.id(), b.id()]);
    let captured: Vec<_> = f
        .captured()
        .iter()
        .map(|t| t.to_vec::<f32>().unwrap())
        .collect();
    assert_eq!(captured, [[1.0, 2.0], [3.0, 4.0]]);
}

#[test]
fn a_tensor_that_left_its_function_has_no_value() {
    let mut leaked = None;
    compile(Spec::new(DType::F32, [2]), |x| {
        leaked = Some(x.exp());
        x.clone()
    })
    .unwrap();
    let e = leaked.unwrap().realize().map(|_| ()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ReadWhileCompiling, "{e}");
}

#[test]
fn what_was_prepared_for_other_sizes_is_prepared_again_where_only_an_offset_differs() {
    let w = Var::new(vector(&[1.0, 2.0, 3.0])).unwrap();
    let spec = Spec::new(DType::F32, ("n", 4));
    // The last row of a triangle: the number of rows decides which of its elements are 1.
    let f = compile(spec, |x| {
        let triangle = x.ones_like().triu();
        let row = triangle.select(0, -1).narrow(0, 0, 3) * w.get();
        x.sum([0]).narrow(0, 0, 3) + row.exp()
    })
    .unwrap();
    for n in [2usize, 3, 5, 2] {
        let x = Tensor::zeros([n, 4], DType::F32);
        let of = |j: usize| if j + 1 >= n { (j + 1) as f32 } else { 0.0 };
        let want: Vec<f32> = (0..3).map(|j| of(j).exp()).collect();
        let y = f.run(&x).unwrap().to_vec::<f32>().unwrap();
        assert_close(&y, &want);
    }
}

#[test]
fn a_program_has_any_number_of_symbols() {
    let names: Vec<String> = (0..40).map(|i| format!("n{i}")).collect();
    let spec = |n: &String| Spec::new(DType::F32, n);
    let specs: Vec<Spec> = names.iter().map(spec).collect();
    let f = compile(&specs, |x| {
        let x = kiln::cat(&x, 0);
        x.exp().sum(())
    })
    .unwrap();
    let parts: Vec<Tensor> = (0..40)
        .map(|i| Tensor::zeros([2 + i % 5], DType::F32))
        .collect();
    let y = f.run(&parts).unwrap();
    assert_eq!(y.item::<f32>().unwrap(), 160.0);
}
