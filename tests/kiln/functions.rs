//! Functions of structures of tensors: their arguments, their results, and the derivatives of both.

use kiln::{
    DType, Error, Feed, Flat, Grad, Nest, Result, Spec, Tensor, Var, cat, checkpoint, compile,
    cond, custom_function, grad, grad_with, gradcheck, hessian, jacobian, jvp, scan, vjp,
};

/// A structure that may hold references, specs, or anything else instead of tensors.
#[derive(Nest, Clone, Debug)]
struct Layer<T = Tensor> {
    weight: T,
    bias: Option<T>,
}

/// A structure of tensors alone.
#[derive(Nest)]
struct Batch {
    images: Tensor,
    labels: Tensor,
}

#[derive(Nest)]
struct Pair<A, B>(A, [B; 2]);

impl Layer {
    fn of(&self, x: &Tensor) -> Tensor {
        let y = x.matmul(&self.weight);
        match &self.bias {
            Some(bias) => y + bias,
            None => y,
        }
    }
}

fn random(shape: &[usize], seed: u64) -> Tensor {
    kiln::with_seed(seed, || Tensor::randn(shape, DType::F64))
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

#[track_caller]
fn near(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape().unwrap(), b.shape().unwrap());
    for (x, y) in values(a).iter().zip(values(b)) {
        assert!((x - y).abs() <= 1e-10 * (1.0 + y.abs()), "{a}\n{b}");
    }
}

#[test]
fn structures_go_in_and_out_of_compiled_functions() -> Result<()> {
    let layer = Layer {
        weight: Spec::new(DType::F64, (3, "out")),
        bias: Some(Spec::new(DType::F64, "out")),
    };
    let f = compile((Spec::new(DType::F64, ("n", 3)), layer), |(x, layer)| {
        let y = layer.of(&x);
        (y.tanh(), vec![Pair(y, [x.clone(), x * 2.0])], ())
    })?;
    let (w, b) = (random(&[3, 2], 1), Var::new(random(&[2], 2))?);
    for n in [4, 2, 1] {
        let x = random(&[n, 3], 3);
        let layer = Layer {
            weight: w.clone(),
            bias: Some(b.get()),
        };
        let (y, pairs, ()) = f.run((&x, &layer))?;
        near(&y, &(x.matmul(&w) + &b).tanh());
        let Pair(_, [same, twice]) = &pairs[0];
        near(same, &x);
        near(twice, &(&x * 2.0));
    }
    // The presence of a value is part of the structure that the function was compiled for.
    let without = Layer {
        weight: &w,
        bias: None,
    };
    let e = f.run((random(&[4, 3], 3), without)).err().unwrap();
    assert!(e.message().contains("argument 1.bias is not given"), "{e}");
    let wrong = Layer {
        weight: w.to_dtype(DType::F32),
        bias: Some(b.get()),
    };
    let e = f.run((random(&[4, 3], 3), wrong)).err().unwrap();
    let text = "argument 1.weight must be f64[3, out], not f32[3, 2]";
    assert!(e.message().contains(text), "{e}");
    Ok(())
}

#[test]
fn tensors_stand_for_their_specs() -> Result<()> {
    let batch = Batch {
        images: random(&[2, 3], 1),
        labels: Tensor::from([0i64, 2]),
    };
    let scores = Var::new(random(&[3, 3], 2))?;
    let f = compile((&batch, &scores), |(batch, scores)| {
        let y = batch.images.matmul(scores);
        let loss = y.cross_entropy(&batch.labels);
        Batch {
            images: loss,
            labels: batch.labels,
        }
    })?;
    let out = f.run((&batch, &scores))?;
    near(
        &out.images,
        &batch.images.matmul(&scores).cross_entropy(&batch.labels),
    );
    assert_eq!(out.labels.to_vec::<i64>()?, [0, 2]);
    let poisoned = random(&[2, 3], 1).matmul(random(&[2, 3], 1));
    let e = compile((&batch, poisoned), |(batch, x)| batch.images + x).unwrap_err();
    assert_eq!(e.op(), "matmul");
    let e = compile(Spec::new(DType::F32, (2, -3)), |x| x.exp()).unwrap_err();
    assert!(
        e.message().contains("the argument can't be f32[2, -3]"),
        "{e}"
    );
    Ok(())
}

#[test]
fn functions_may_fail() {
    let fail = |text: &str| Error::invalid("mine", text);
    let e = compile(Spec::new(DType::F32, 2), |x| match x.ndim() {
        1 => Err(fail("too flat")),
        _ => Ok(x),
    });
    assert_eq!(e.unwrap_err().message(), "too flat");
    let x = random(&[3], 1);
    let failing = move |_: Tensor| -> Result<Tensor> { Err(fail("never")) };
    assert_eq!(checkpoint(failing, &x).unwrap_err().message(), "never");
    assert_eq!(jacobian(failing, &x).unwrap_err().message(), "never");
    let e = scan(&x, &x, |x, _| -> Result<(Tensor, ())> {
        failing(x).map(|x| (x, ()))
    });
    assert_eq!(e.err().unwrap().message(), "never");
    let e = cond(x.sum(()).gt(0.0), || failing(x.clone()), || Ok(x.clone()));
    assert_eq!(e.unwrap_err().message(), "never");
    let own = custom_function(
        move |x: Tensor| failing(x).map(|x| (x, ())),
        |(), g: Tensor| g,
    );
    assert_eq!(own.apply(&x).unwrap_err().message(), "never");
    // An error outside the function is returned too.
    let e = scan(&x, &x, |s, x| Result::Ok((cat([&s, &s], 0), x)));
    let e = e.err().unwrap();
    assert!(
        e.message().contains("the tensor of the state begins as"),
        "{e}"
    );
    let y = checkpoint(|x| Result::Ok(x.exp()), &x).unwrap();
    near(&y, &x.exp());
}

#[test]
fn gradients_have_the_structure_of_the_inputs() -> Result<()> {
    let layer = Layer {
        weight: Var::parameter(random(&[3, 2], 1))?,
        bias: Some(Var::parameter(random(&[2], 2))?),
    };
    let x = random(&[4, 3], 3).requires_grad_(true);
    let y = (x.matmul(&layer.weight) + layer.bias.as_ref().unwrap()).square();
    let (g, [gx]) = grad(y.sum(()), (&layer, [&x]))?;
    let wanted = (x.matmul(&layer.weight) + layer.bias.as_ref().unwrap()) * 2.0;
    near(&g.weight, &x.t().matmul(&wanted));
    near(&g.bias.unwrap(), &wanted.sum(0));
    near(&gx, &wanted.matmul(layer.weight.get().t()));
    Ok(())
}

#[test]
fn inputs_that_nothing_depends_on_are_named() -> Result<()> {
    let leaf = |seed| random(&[2], seed).requires_grad_(true);
    let (x, unused, other) = (leaf(1), leaf(2), leaf(3));
    let y = || x.square().sum(());
    let e = grad(y(), (&x, [&unused])).unwrap_err();
    assert!(
        e.message().contains("no output depends on input 1.0"),
        "{e}"
    );
    let (gx, none) = grad(y(), (&x, Some([&unused, &other])))?;
    near(&gx, &(&x * 2.0));
    assert!(none.is_none());
    let e = grad(y(), Some([&x, &unused])).unwrap_err();
    assert!(e.message().contains("input 1"), "{e}");
    let all = vec![Some(&unused), None, Some(&x)];
    let all = grad(y(), all)?;
    assert!(all[0].is_none() && all[1].is_none() && all[2].is_some());
    let zeros = Grad::new().materialize_grads(true);
    let [_, zero] = grad_with(y(), [&x, &unused], zeros)?;
    assert_eq!(values(&zero), [0.0, 0.0]);
    let e = grad(y(), (&x, random(&[2], 4))).unwrap_err();
    assert!(
        e.message().contains("input 1, f64[2], does not require"),
        "{e}"
    );
    Ok(())
}

#[test]
fn products_with_the_jacobian_are_structures() -> Result<()> {
    let (x, w) = (random(&[2, 3], 1), random(&[3, 2], 2));
    let f = |(x, w): (Tensor, Tensor)| [x.matmul(&w).sin(), x.exp()];
    let ([y, z], pull) = vjp(f, (&x, &w))?;
    near(&y, &x.matmul(&w).sin());
    near(&z, &x.exp());
    assert!(!y.requires_grad());
    let cotangents = [random(&[2, 2], 3), random(&[2, 3], 4)];
    let (gx, gw) = pull.call(&cotangents)?;
    let inner = x.matmul(&w).cos() * &cotangents[0];
    near(&gx, &(inner.matmul(w.t()) + x.exp() * &cotangents[1]));
    near(&gw, &x.t().matmul(&inner));
    // Again, with other gradients.
    let (twice, _) = pull.call([&cotangents[0] * 2.0, &cotangents[1] * 2.0])?;
    near(&twice, &(&gx * 2.0));
    let e = pull.call([&cotangents[1], &cotangents[1]]).unwrap_err();
    assert!(
        e.message()
            .contains("gradient 0 is f64[2, 3], but the result is f64[2, 2]"),
        "{e}"
    );

    let (dx, dw) = (random(&[2, 3], 5), random(&[3, 2], 6));
    let ([_, z], [dy, dz]) = jvp(f, (&x, &w), (&dx, &dw))?;
    near(&z, &x.exp());
    near(&dy, &(x.matmul(&w).cos() * (dx.matmul(&w) + x.matmul(&dw))));
    near(&dz, &(x.exp() * &dx));
    let e = jvp(f, (&x, &w), (&dx, &dx)).unwrap_err();
    assert!(
        e.message()
            .contains("tangent 1 is f64[2, 3], but the input is f64[3, 2]"),
        "{e}"
    );
    let e = vjp(|x: Tensor| x.to_dtype(DType::F32), Tensor::from(1i64))
        .err()
        .unwrap();
    assert!(
        e.message()
            .contains("only floats have derivatives, but the input is i64"),
        "{e}"
    );
    // The gradient of an input that the result does not depend on is zeros.
    let (_, pull) = vjp(|(x, w): (Tensor, Tensor)| x + w.detach(), (&x, &x))?;
    assert_eq!(values(&pull.call(Tensor::ones_like(&x))?.1), [0.0; 6]);
    Ok(())
}

/// The derivatives by central differences, row by row.
fn differences(f: impl Fn(&Tensor) -> Tensor, x: &Tensor) -> Vec<f64> {
    let (shape, at) = (x.shape().unwrap(), values(x));
    let column = |i: usize| {
        let moved = |by: f64| {
            let mut x = at.clone();
            x[i] += by;
            values(&f(&Tensor::from_slice(&x, &shape)))
        };
        let (up, down) = (moved(1e-5), moved(-1e-5));
        up.iter()
            .zip(down)
            .map(|(a, b)| (a - b) / 2e-5)
            .collect::<Vec<f64>>()
    };
    let columns: Vec<Vec<f64>> = (0..at.len()).map(column).collect();
    let rows = columns.first().map_or(0, Vec::len);
    (0..rows)
        .flat_map(|r| columns.iter().map(move |c| c[r]))
        .collect()
}

#[test]
fn a_jacobian_is_its_rows() -> Result<()> {
    let w = random(&[5, 4], 1);
    // Few rows are recorded one by one, many rows as a loop.
    for n in [1, 2, 3, 7] {
        let x = random(&[n, 5], 2);
        let f = |x: &Tensor| x.matmul(&w).tanh().cumsum(0);
        let j = jacobian(|x: Tensor| f(&x), &x)?;
        assert_eq!(j.shape()?, [n, 4, n, 5]);
        assert!(!j.requires_grad());
        for (a, b) in values(&j).iter().zip(differences(f, &x)) {
            assert!((a - b).abs() < 1e-8, "{a} {b}");
        }
    }
    let none = jacobian(|x: Tensor| x.exp(), random(&[0, 3], 1))?;
    assert_eq!(none.shape()?, [0, 3, 0, 3]);
    let number = jacobian(|x: Tensor| x.square().sum(()), random(&[3], 5))?;
    near(&number, &(random(&[3], 5) * 2.0));
    Ok(())
}

#[test]
fn jacobians_and_hessians_nest() -> Result<()> {
    let layer = Layer {
        weight: random(&[3, 4], 1),
        bias: Some(random(&[4], 2)),
    };
    let x = random(&[5, 3], 3);
    let f = |layer: Layer| Layer {
        weight: layer.of(&x).sin(),
        bias: Some(layer.weight.square().sum(())),
    };
    let j = jacobian(f, &layer)?;
    let of_bias = j.weight.bias.unwrap();
    assert_eq!(of_bias.shape()?, [5, 4, 4]);
    let eye = Tensor::eye(4, DType::F64).unsqueeze(0);
    near(&of_bias, &(layer.of(&x).cos().unsqueeze(2) * eye));
    let last = j.bias.unwrap();
    near(&last.weight, &(&layer.weight * 2.0));
    assert_eq!(values(&last.bias.unwrap()), [0.0; 4]);

    let loss = |layer: Layer| (layer.of(&x).sin() * layer.of(&x)).sum(());
    let h = hessian(loss, &layer)?;
    let by_weight = |w: &Tensor| {
        let layer = Layer {
            weight: w.requires_grad_(true),
            ..layer.clone()
        };
        grad(loss(layer.clone()), &layer.weight).unwrap()
    };
    let wanted = differences(by_weight, &layer.weight);
    assert_eq!(h.weight.weight.shape()?, [3, 4, 3, 4]);
    for (a, b) in values(&h.weight.weight).iter().zip(wanted) {
        assert!((a - b).abs() < 1e-7, "{a} {b}");
    }
    let (across, back) = (h.weight.bias.unwrap(), h.bias.unwrap().weight);
    assert_eq!(
        (across.shape()?, back.shape()?),
        (vec![3, 4, 4], vec![4, 3, 4])
    );
    near(&across, &back.permute([1, 2, 0]));
    // A function that is linear in its input, and one that does not depend on it.
    assert_eq!(values(&hessian(|x: Tensor| x.sum(()), &x)?), vec![0.0; 225]);
    assert_eq!(
        values(&hessian(
            |_: Tensor| Tensor::scalar(1.0f64),
            random(&[2], 1)
        )?),
        [0.0; 4]
    );
    let e = hessian(|x: Tensor| x.exp(), &x).unwrap_err();
    assert!(e.message().contains("more than one element"), "{e}");
    Ok(())
}

/// `torch.autograd.functional.hessian` and `jacobian` of the same functions.
#[test]
fn pytorch_agrees() -> Result<()> {
    let x = Tensor::from([0.5f64, -1.0, 2.0]);
    let y = Tensor::from([[1.0f64, 0.25], [-0.5, 2.0], [1.5, -1.0]]);
    let f = |(x, y): (Tensor, Tensor)| (x.unsqueeze(0).matmul(&y).tanh() * x.prod(())).sum(());
    let ((xx, xy), (yx, _)) = hessian(f, (&x, &y))?;
    near(&xx, &Tensor::from(XX));
    near(&xy.select(1, 1), &Tensor::from(XY));
    near(&yx.permute([2, 0, 1]), &xy);
    Ok(())
}

const XX: [[f64; 3]; 3] = [
    [
        -0.004620187477073473,
        -0.006452902077459971,
        0.003224202598797476,
    ],
    [
        -0.00645290207745997,
        -0.007545013086921414,
        0.0038688377142850902,
    ],
    [
        0.003224202598797476,
        0.00386883771428509,
        0.0023002828428437443,
    ],
];

/// By `x` and the second row of `y`.
const XY: [[f64; 2]; 3] = [
    [1.7987519460074422e-06, 0.004302975820907869],
    [-0.0013418500589989202, 0.0034370440287109765],
    [-0.00334967857964578, -0.0025792654182041543],
];

#[test]
fn derivatives_are_differentiated_again() -> Result<()> {
    let x = random(&[4], 1);
    let cube = |x: Tensor| x.pow(3) * x.sum(());
    for n in [4, 12] {
        let x = random(&[n], 2);
        gradcheck(|x| jacobian(cube, x).map(|j| j.square()), &x)?;
        gradcheck(|x| hessian(|x| cube(x).sum(()), x).map(|h| h.sin()), &x)?;
    }
    gradcheck(|(x, v)| jvp(cube, x, v), (&x, random(&[4], 2)))?;
    gradcheck(|(x, v)| vjp(cube, x)?.1.call(v), (&x, random(&[4], 3)))?;
    // A captured tensor may be differentiated too.
    let w = random(&[4], 4);
    gradcheck(|w| jacobian(|x: Tensor| (x * &w).sin(), &x), &w)?;
    // Jacobians nest: the Jacobian of a Jacobian is the Hessian.
    let nested = jacobian(|x: Tensor| jacobian(|x: Tensor| x.pow(3).sum(()), x), &x)?;
    near(&nested, &hessian(|x: Tensor| x.pow(3).sum(()), &x)?);
    // Without a use of its history, the result has none.
    let frozen = kiln::no_grad(|| jacobian(cube, random(&[12], 2).requires_grad_(true)))?;
    assert!(!frozen.requires_grad());
    Ok(())
}

#[test]
fn derivatives_are_compiled_and_stand_in_loops() -> Result<()> {
    let x = random(&[3, 5], 1);
    let f = |x: Tensor| (x.exp() * x.sum(())).sin();
    let compiled = compile(Spec::new(DType::F64, ("n", "m")), |x| jacobian(f, x))?;
    for shape in [[3, 5], [2, 2], [4, 3]] {
        let x = random(&shape, 2);
        near(&compiled.run(&x)?, &jacobian(f, &x)?);
    }
    let h = compile(&x, |x| hessian(|x| f(x).sum(()), x))?;
    near(&h.run(&x)?, &hessian(|x| f(x).sum(()), &x)?);
    // The Jacobian of each row by itself, also in a loop that is differentiated.
    let rows = |x: Tensor| scan((), x, |(), row| Ok(((), jacobian(f, row)?))).map(|(_, y)| y);
    let apart = (0..3)
        .map(|i| jacobian(f, x.select(0, i)))
        .collect::<Result<Vec<_>>>()?;
    near(&rows(x.clone())?, &kiln::stack(&apart, 0));
    gradcheck(rows, &x)
}

#[test]
fn custom_functions_take_and_save_structures() -> Result<()> {
    // A product whose second factor gets twice its gradient.
    let product = custom_function(
        |(x, y): (Tensor, Tensor)| {
            let both = &x * &y;
            ((both, x.exp()), (y, x.clone(), x.exp()))
        },
        |(y, x, e): (Tensor, Tensor, Tensor), (g, h): (Tensor, Tensor)| {
            (&g * y + h * e, g * x * 2.0)
        },
    );
    let (x, y) = (
        random(&[3], 1).requires_grad_(true),
        random(&[3], 2).requires_grad_(true),
    );
    let (z, e) = product.apply((&x, &y));
    near(&z, &(&x * &y));
    let create = Grad::new().create_graph(true);
    let (gx, gy) = grad_with((z * 3.0).sum(()) + e.sum(()), (&x, &y), create)?;
    near(&gx, &(&y * 3.0 + x.exp()));
    near(&gy, &(&x * 6.0));
    // Saved inputs are differentiated again; other saved values are constants.
    let (xx, xy) = grad(gx.sum(()), (Some(&x), &y))?;
    assert!(xx.is_none());
    assert_eq!(values(&xy), [3.0; 3]);

    // Labels have no gradient, and neither has an input whose gradient is `None`.
    let picked = custom_function(
        |(x, at, unused): (Tensor, Tensor, Tensor)| (x.gather(0, &at) + unused, (at, x)),
        |(at, x): (Tensor, Tensor), g: Tensor| {
            (x.zeros_like().scatter_add(0, at, g), (), None::<Tensor>)
        },
    );
    let at = Tensor::from([2i64, 0]);
    let unused = random(&[2], 3).requires_grad_(true);
    let loss = picked.apply((&x, &at, &unused)).sum(());
    let (gx, none) = grad(&loss, (&x, Some(&unused)))?;
    assert_eq!(values(&gx), [1.0, 0.0, 1.0]);
    assert!(none.is_none());
    Ok(())
}

#[test]
fn derivatives_are_recorded_at_the_users_lines() {
    let x = random(&[12], 1);
    let line = line!() + 1;
    let j = jacobian(|x: Tensor| x.exp(), x).unwrap();
    let text = kiln::explain(&j).unwrap().to_string();
    assert!(!text.contains("transform.rs"), "{text}");
    assert!(
        text.contains(&format!("tests/kiln/functions.rs:{line}")),
        "{text}"
    );
}

/// A structure with a setting that is not a tensor.
struct Scaled {
    x: Tensor,
    by: usize,
}

impl Nest for Scaled {
    type Owned = Scaled;

    fn flatten_into(&self, flat: &mut Flat) {
        flat.count(self.by);
        flat.part("x", &self.x);
    }

    fn build(feed: &mut Feed<'_>) -> Scaled {
        let by = feed.count();
        let x = <Tensor as Nest>::build(feed);
        Scaled { x, by }
    }
}

#[test]
fn settings_in_a_structure_stay() -> Result<()> {
    let x = random(&[3], 1);
    let scaled = |by| Scaled { x: x.clone(), by };
    let out = checkpoint(
        |s: Scaled| Scaled {
            x: s.x * s.by,
            by: s.by + 1,
        },
        scaled(3),
    );
    near(&out.x, &(&x * 3.0));
    assert_eq!(out.by, 4);
    let out = cond(x.sum(()).gt(-1e9), || scaled(2), || scaled(2));
    assert_eq!(out.by, 2);
    let e = cond(x.sum(()).gt(0.0), || scaled(2), || scaled(3));
    let e = e.x.error().cloned().unwrap();
    assert!(e.message().contains("other structures"), "{e}");
    Ok(())
}
